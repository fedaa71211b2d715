//! Groups whose ranks are threads of one process.

use std::net::{Ipv4Addr, TcpListener, TcpStream};

use crate::channel::Channel;
use crate::error::FabricError;
use crate::fabric::{Fabric, Lifelines, Links};
use crate::link::rdma::local_rdma_pair;
use crate::link::{Link, SharedFile, SharedMemoryLink, TcpLink, Transport, ring_bytes};
use crate::liveness::LIVENESS_DEADLINE;
use crate::rendezvous::prepare;
use crate::topology::Topology;

/// Both ends of a link.
pub(crate) type Pair = (Box<dyn Link>, Box<dyn Link>);

/// The fabrics of a group of `size` ranks in this process, by rank, each for a thread of its own. Needs no rendezvous
/// and no secret. [`Transport::Auto`] is shared memory.
///
/// # Errors
/// When the system has no sockets or no shared memory left.
pub fn local_group(size: usize, transport: Transport) -> Result<Vec<Fabric>, FabricError> {
    local_group_on(&Topology::one_host(size), transport)
}

/// As [`local_group`], for ranks that believe to be on another topology, and so do their collectives as one does there.
///
/// # Errors
/// As for [`local_group`].
pub fn local_group_on(topology: &Topology, transport: Transport) -> Result<Vec<Fabric>, FabricError> {
    // Rank by rank, each link is made with all lower ranks, whose rows so fill up in order.
    let size = topology.size();
    let mut rows: Vec<(Links, Lifelines)> = Vec::with_capacity(size);
    for rank in 0..size {
        let (mut links, mut lifelines): (Links, Lifelines) = (Vec::with_capacity(size), Vec::with_capacity(size));
        for (other, lower) in rows.iter_mut().enumerate() {
            let (theirs, ours) = match transport {
                Transport::Rdma => local_rdma_pair([other, rank], local_lifelines()?)?,
                _ => local_pair(transport, size)?,
            };
            lower.0.push(Some(theirs));
            links.push(Some(ours));
            let (theirs, ours) = local_lifelines()?;
            lower.1.push(Some(theirs));
            lifelines.push(Some(ours));
        }
        links.push(None);
        lifelines.push(None);
        rows.push((links, lifelines));
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let fabrics = rows.into_iter().enumerate().map(|(rank, (links, lifelines))| {
        let mut fabric = Fabric::from_links(rank, 1, links, lifelines, topology.clone(), LIVENESS_DEADLINE)?;
        fabric.set_crowded(size > cores);
        Ok(fabric)
    });
    fabrics.collect()
}

/// A link other than by RDMA between two threads of this process, in a group of `ranks`.
pub(crate) fn local_pair(transport: Transport, ranks: usize) -> Result<Pair, FabricError> {
    if transport == Transport::Tcp {
        let (acceptor, dialer) = local_sockets()?;
        return Ok((
            Box::new(TcpLink::new(vec![Channel::plain(acceptor)])),
            Box::new(TcpLink::new(vec![Channel::plain(dialer)])),
        ));
    }
    let failed = |error| FabricError::io("cannot share memory", error);
    let ring_bytes = ring_bytes(ranks);
    let memory = SharedFile::sealed(ring_bytes).or_else(|_| SharedFile::named(ring_bytes));
    let mut memory = memory.map_err(failed)?;
    let same_memory = SharedFile::open(memory.name());
    memory.unlink();
    let same_memory = same_memory.map_err(failed)?;
    let ends = (SharedMemoryLink::acceptor(memory), SharedMemoryLink::dialer(same_memory));
    Ok((Box::new(ends.0), Box::new(ends.1)))
}

/// Both ends of a lifeline between two threads of this process.
pub(crate) fn local_lifelines() -> Result<(Channel, Channel), FabricError> {
    let (acceptor, dialer) = local_sockets()?;
    Ok((Channel::plain(acceptor), Channel::plain(dialer)))
}

/// Two ends of a connection over loopback.
pub(crate) fn local_sockets() -> Result<(TcpStream, TcpStream), FabricError> {
    let connect = || -> std::io::Result<(TcpStream, TcpStream)> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let dialer = TcpStream::connect(listener.local_addr()?)?;
        loop {
            let (acceptor, from) = listener.accept()?;
            // Anyone on this machine could have connected in between.
            if from == dialer.local_addr()? {
                return Ok((acceptor, dialer));
            }
        }
    };
    let (acceptor, dialer) = connect().map_err(|error| FabricError::io("cannot connect over loopback", error))?;
    prepare(&acceptor)?;
    prepare(&dialer)?;
    Ok((acceptor, dialer))
}
