//! The kernels on the host, compiled from the same source (`cuda/emulation.h`). For tests.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::sync::{Arc, Mutex, PoisonError};

use super::driver::{Arg, Driver, Graph, Launch, failed};
use crate::Error;

unsafe extern "C" {
    fn tokenrouter_emulate(
        name: *const c_char,
        x: c_uint,
        y: c_uint,
        z: c_uint,
        threads: c_uint,
        params: *mut *mut c_void,
    ) -> c_int;
}

const ALIGNMENT: usize = 256;

/// Launches and their arguments.
type Notes = Vec<(Launch, Vec<Arg>)>;

/// A device whose memory is the host's.
#[derive(Debug, Default)]
pub(super) struct Emulated {
    /// Present while capturing.
    notes: Mutex<Option<Notes>>,
}

impl Emulated {
    fn notes(&self) -> std::sync::MutexGuard<'_, Option<Notes>> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn refuse_in_capture(&self, what: &'static str) -> Result<(), Error> {
        if self.notes().is_some() { Err(failed(what, "not possible in a capture")) } else { Ok(()) }
    }
}

/// # Safety
/// As [`Driver::launch`].
unsafe fn run(launch: Launch, args: &mut [Arg]) -> Result<(), Error> {
    let name = CString::new(launch.kernel).map_err(|error| failed("kernel name", error))?;
    let mut params: Vec<*mut c_void> = args.iter_mut().map(Arg::pointer).collect();
    let [x, y, z] = launch.grid;
    // SAFETY: the caller vouches for arguments and memory; the pointers are to `args`, which outlive the call.
    match unsafe { tokenrouter_emulate(name.as_ptr(), x, y, z, launch.threads, params.as_mut_ptr()) } {
        0 => Ok(()),
        _ => Err(failed("launch", format!("no kernel `{}`", launch.kernel))),
    }
}

fn layout(bytes: usize) -> Result<Layout, Error> {
    Layout::from_size_align(bytes.max(1), ALIGNMENT).map_err(|error| failed("allocation", error))
}

impl Driver for Emulated {
    fn name(&self) -> String {
        "emulated CUDA device".into()
    }

    fn memory(&self) -> Result<Option<(usize, usize)>, Error> {
        Ok(None)
    }

    fn allocate(&self, bytes: usize) -> Result<u64, Error> {
        // SAFETY: the layout's size is not 0.
        let memory = unsafe { alloc_zeroed(layout(bytes)?) };
        if memory.is_null() { Err(failed("allocation", format!("no {bytes} bytes"))) } else { Ok(memory as u64) }
    }

    unsafe fn free(&self, address: u64, bytes: usize) {
        if let Ok(layout) = layout(bytes) {
            // SAFETY: the caller vouches that `allocate` gave this memory, with this layout.
            unsafe { dealloc(address as *mut u8, layout) };
        }
    }

    unsafe fn upload(&self, to: u64, from: &[u8]) -> Result<(), Error> {
        self.refuse_in_capture("copy to the device")?;
        // SAFETY: the caller vouches for the length of `to`, which `from` cannot overlap.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to as *mut u8, from.len()) };
        Ok(())
    }

    unsafe fn download(&self, from: u64, to: &mut [u8]) -> Result<(), Error> {
        self.refuse_in_capture("copy from the device")?;
        // SAFETY: the caller vouches for the length of `from`, which `to` cannot overlap.
        unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to.as_mut_ptr(), to.len()) };
        Ok(())
    }

    unsafe fn launch(&self, launch: Launch, args: &mut [Arg]) -> Result<(), Error> {
        if let Some(notes) = &mut *self.notes() {
            notes.push((launch, args.to_vec()));
            return Ok(());
        }
        // SAFETY: the caller's promise is the same.
        unsafe { run(launch, args) }
    }

    fn synchronize(&self) -> Result<(), Error> {
        self.refuse_in_capture("synchronisation")
    }

    fn begin_capture(&self) -> Result<(), Error> {
        self.refuse_in_capture("capture")?;
        *self.notes() = Some(Notes::new());
        Ok(())
    }

    fn end_capture(&self) -> Result<Box<dyn Graph>, Error> {
        let notes = self.notes().take().ok_or_else(|| failed("capture", "none was begun"))?;
        Ok(Box::new(Noted(Arc::new(notes))))
    }
}

/// Launches to be run.
struct Noted(Arc<Notes>);

impl Graph for Noted {
    unsafe fn launch(&self) -> Result<(), Error> {
        for (launch, args) in self.0.iter() {
            // SAFETY: the caller vouches that the memory is still there; the rest was vouched for when it was noted.
            unsafe { run(*launch, &mut args.clone())? };
        }
        Ok(())
    }
}
