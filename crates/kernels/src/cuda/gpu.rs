//! A CUDA device, through cudarc. Its libraries are loaded when a device is first asked for, so that one binary starts
//! everywhere.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::{CudaContext, CudaFunction, CudaGraph, CudaModule, CudaStream, DriverError, result, sys};
use cudarc::nvrtc::Ptx;

use super::driver::{Arg, Driver, Graph, Launch, failed};
use crate::Error;

/// Machine code for the architectures that `build.rs` names, and PTX for later ones.
static KERNELS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/kernels.fatbin"));

/// A device with a stream of its own.
pub(super) struct Gpu {
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    module: Arc<CudaModule>,
    functions: Mutex<HashMap<&'static str, CudaFunction>>,
}

fn driver(what: &'static str) -> impl Fn(DriverError) -> Error {
    move |error| failed(what, error)
}

/// How many devices there are; why there are none.
pub(super) fn count() -> Result<usize, Error> {
    // SAFETY: tries to open the driver's library, which has no preconditions.
    if !unsafe { sys::is_culib_present() } {
        return Err(failed("CUDA", "the driver's library (libcuda) is not on this machine"));
    }
    let count = CudaContext::device_count().map_err(driver("CUDA"))?;
    Ok(usize::try_from(count).unwrap_or(0))
}

impl Gpu {
    pub(super) fn new(ordinal: usize) -> Result<Self, Error> {
        let count = count()?;
        if ordinal >= count {
            return Err(failed("CUDA device", format!("`cuda:{ordinal}` is not there, the machine has {count}")));
        }
        let context = CudaContext::new(ordinal).map_err(driver("CUDA device"))?;
        // SAFETY: all memory of this context is used on one stream, by raw addresses: there is nothing to track.
        unsafe { context.disable_event_tracking() };
        let stream = context.new_stream().map_err(driver("stream"))?;
        let module = context.load_module(Ptx::from_binary(KERNELS.to_vec())).map_err(|error| {
            let (major, minor) = context.compute_capability().unwrap_or_default();
            failed(
                "kernels",
                format!("{error}; built for compute capability 8.0 and later, the device has {major}.{minor}"),
            )
        })?;
        Ok(Self { context, stream, module, functions: Mutex::default() })
    }

    pub(super) fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    fn function(&self, name: &'static str) -> Result<CudaFunction, Error> {
        let mut functions = self.functions.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(function) = functions.get(name) {
            return Ok(function.clone());
        }
        let function =
            self.module.load_function(name).map_err(|error| failed("kernel", format!("`{name}`: {error}")))?;
        functions.insert(name, function.clone());
        Ok(function)
    }

    fn bind(&self) -> Result<(), Error> {
        self.context.bind_to_thread().map_err(driver("CUDA context"))
    }
}

impl Driver for Gpu {
    fn name(&self) -> String {
        let name = self.context.name().unwrap_or_else(|_| "CUDA device".into());
        format!("cuda:{} ({name})", self.context.ordinal())
    }

    fn memory(&self) -> Result<Option<(usize, usize)>, Error> {
        self.context.mem_get_info().map(Some).map_err(driver("memory of the device"))
    }

    fn allocate(&self, bytes: usize) -> Result<u64, Error> {
        self.bind()?;
        let no_room = |error| failed("allocation", format!("{bytes} bytes: {error}"));
        // SAFETY: the size is not 0; the memory is set before anything reads it.
        unsafe {
            let address = result::malloc_sync(bytes.max(1)).map_err(no_room)?;
            result::memset_d8_async(address, 0, bytes, self.stream.cu_stream()).map_err(driver("allocation"))?;
            Ok(address)
        }
    }

    unsafe fn free(&self, address: u64, _bytes: usize) {
        if self.bind().is_ok() {
            // SAFETY: the caller vouches for the address. Freeing waits for the device.
            let _freed = unsafe { result::free_sync(address) };
        }
    }

    unsafe fn upload(&self, to: u64, from: &[u8]) -> Result<(), Error> {
        self.bind()?;
        // SAFETY: the caller vouches for `to`. The driver copies pageable memory before it returns.
        unsafe { result::memcpy_htod_async(to, from, self.stream.cu_stream()) }.map_err(driver("copy to the device"))
    }

    unsafe fn download(&self, from: u64, to: &mut [u8]) -> Result<(), Error> {
        self.bind()?;
        // SAFETY: the caller vouches for `from`; `to` lives until the copy is done, which the next line waits for.
        unsafe { result::memcpy_dtoh_async(to, from, self.stream.cu_stream()) }
            .map_err(driver("copy from the device"))?;
        self.synchronize()
    }

    unsafe fn launch(&self, launch: Launch, args: &mut [Arg]) -> Result<(), Error> {
        self.bind()?;
        let function = self.function(launch.kernel)?;
        let mut params: Vec<*mut c_void> = args.iter_mut().map(Arg::pointer).collect();
        let [x, y, z] = launch.grid;
        // SAFETY: the caller vouches for arguments and memory; the pointers are to `args`, which the driver copies.
        unsafe {
            let block = (launch.threads, 1, 1);
            result::launch_kernel(function.cu_function(), (x, y, z), block, 0, self.stream.cu_stream(), &mut params)
        }
        .map_err(|error| failed("launch", format!("`{}`: {error}", launch.kernel)))
    }

    fn synchronize(&self) -> Result<(), Error> {
        self.stream.synchronize().map_err(driver("work on the device"))
    }

    fn gpu(&self) -> Option<&Gpu> {
        Some(self)
    }

    fn begin_capture(&self) -> Result<(), Error> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        self.stream.begin_capture(mode).map_err(driver("capture of a graph"))
    }

    fn end_capture(&self) -> Result<Box<dyn Graph>, Error> {
        let graph = self.stream.end_capture(sys::CUgraphInstantiate_flags(0)).map_err(driver("capture of a graph"))?;
        let graph = graph.ok_or_else(|| failed("capture of a graph", "nothing was launched"))?;
        graph.upload().map_err(driver("graph"))?;
        Ok(Box::new(Captured(graph)))
    }
}

struct Captured(CudaGraph);

// SAFETY: a graph may be used from any thread, by one at a time; a `&mut` decoder owns it.
unsafe impl Send for Captured {}

impl Graph for Captured {
    unsafe fn launch(&self) -> Result<(), Error> {
        self.0.launch().map_err(driver("launch of a graph"))
    }
}
