//! What a policy keeps of one request.

use std::any::Any;
use std::fmt::Debug;

use serde::Serialize;
use serde::de::DeserializeOwned;

/// A value of the policy's own type, made by `Default` on first use. It travels with the request from model to model, in
/// process as it is, over a network as bytes.
#[derive(Debug, Default, Clone)]
pub struct RequestState(Form);

#[derive(Debug, Default, Clone)]
enum Form {
    #[default]
    Unused,
    Value(Box<dyn Value>),
    /// As another process sent it. Only the policy knows the type.
    Bytes(Vec<u8>),
}

trait Value: Any + Send + Debug {
    fn as_any(&mut self) -> &mut dyn Any;
    fn clone_box(&self) -> Box<dyn Value>;
    fn to_bytes(&self) -> Vec<u8>;
}

/// A link keeps a copy of what it sends until it has arrived.
impl Clone for Box<dyn Value> {
    fn clone(&self) -> Self {
        // Not `self.clone_box()`: the box would be a `Value` itself if it were `Any`.
        (**self).clone_box()
    }
}

impl<T: Any + Clone + Send + Debug + Serialize> Value for T {
    fn as_any(&mut self) -> &mut dyn Any {
        self
    }

    fn clone_box(&self) -> Box<dyn Value> {
        Box::new(self.clone())
    }

    fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("the state of a routing policy is plain data")
    }
}

impl RequestState {
    /// The state as `T`. A policy uses one type throughout.
    ///
    /// # Panics
    /// When the state was made as another type.
    pub fn get<T>(&mut self) -> &mut T
    where
        T: Clone + Default + Send + Debug + Serialize + DeserializeOwned + 'static,
    {
        match &self.0 {
            Form::Value(_) => {}
            Form::Unused => self.0 = Form::Value(Box::new(T::default())),
            Form::Bytes(bytes) => {
                let value = serde_json::from_slice(bytes).unwrap_or_else(|error| {
                    // Both ends have compared versions and methods; an unreadable state must not end the subserver.
                    tracing::error!(target: "tokenrouter", %error, "unreadable routing state from a peer: begun anew");
                    T::default()
                });
                self.0 = Form::Value(Box::new(value));
            }
        }
        let Form::Value(value) = &mut self.0 else { unreachable!("made above") };
        // Not `value.as_any()`: the box is a `Value` itself.
        (**value).as_any().downcast_mut().expect("a routing policy keeps one type of state")
    }

    /// For another process; empty when nothing is kept.
    pub fn to_bytes(&self) -> Vec<u8> {
        match &self.0 {
            Form::Unused => Vec::new(),
            Form::Value(value) => (**value).to_bytes(),
            Form::Bytes(bytes) => bytes.clone(),
        }
    }

    /// From another process.
    pub fn from_bytes(bytes: Vec<u8>) -> Self {
        Self(if bytes.is_empty() { Form::Unused } else { Form::Bytes(bytes) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_keeps_its_value() {
        let mut state = RequestState::default();
        *state.get::<u32>() += 2;
        *state.get::<u32>() += 3;
        assert_eq!(*state.get::<u32>(), 5);
    }

    #[test]
    fn state_keeps_its_value_over_a_network() {
        let mut state = RequestState::default();
        assert!(state.to_bytes().is_empty());
        state.get::<(u32, Vec<u8>)>().1.extend([1, 200]);
        let mut there = RequestState::from_bytes(state.to_bytes());
        // Forwarded without a look, too.
        let mut back = RequestState::from_bytes(there.clone().to_bytes());
        assert_eq!(there.get::<(u32, Vec<u8>)>(), &(0, vec![1, 200]));
        assert_eq!(back.get::<(u32, Vec<u8>)>(), &(0, vec![1, 200]));
        assert_eq!(*RequestState::from_bytes(b"{".to_vec()).get::<u32>(), 0);
    }
}
