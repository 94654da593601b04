//! dtmc
