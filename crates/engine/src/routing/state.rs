//! What a policy keeps of one request.

use std::any::Any;
use std::fmt::Debug;

/// A value of the policy's own type, made by `Default` on first use. It travels with the request from model to model.
#[derive(Debug, Default, Clone)]
pub struct RequestState(Option<Box<dyn Value>>);

trait Value: Any + Send + Debug {
    fn as_any(&mut self) -> &mut dyn Any;
    fn clone_box(&self) -> Box<dyn Value>;
}

/// A link keeps a copy of what it sends until it has arrived.
impl Clone for Box<dyn Value> {
    fn clone(&self) -> Self {
        // Not `self.clone_box()`: the box would be a `Value` itself if it were `Any`.
        (**self).clone_box()
    }
}

impl<T: Any + Clone + Send + Debug> Value for T {
    fn as_any(&mut self) -> &mut dyn Any {
        self
    }

    fn clone_box(&self) -> Box<dyn Value> {
        Box::new(self.clone())
    }
}

impl RequestState {
    /// The state as `T`. A policy uses one type throughout.
    ///
    /// # Panics
    /// When the state was made as another type.
    pub fn get<T: Clone + Default + Send + Debug + 'static>(&mut self) -> &mut T {
        let value = self.0.get_or_insert_with(|| Box::new(T::default()));
        // Not `value.as_any()`: the box is a `Value` itself.
        (**value).as_any().downcast_mut().expect("a routing policy keeps one type of state")
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
}
