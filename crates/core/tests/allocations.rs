//! Scheduler cores with routing and handoff allocate nothing in the steady state. A test binary of its own, because it
//! counts the allocations of the whole process' thread.

mod ring;

#[test]
fn scheduling_routing_and_handoff_allocate_nothing() {
    let mut ring = ring::Ring::new(8, 4096);
    // Buffers grow to their sizes.
    (0..600).for_each(|_| ring.round());
    let before = ring.rows;
    let counted = allocation_counter::measure(|| (0..200).for_each(|_| ring.round()));
    let rows = ring.rows - before;
    assert!(rows > 1000, "{rows} rows were stepped");
    assert_eq!(counted.count_total, 0, "allocations in {rows} steps of a request");
}
