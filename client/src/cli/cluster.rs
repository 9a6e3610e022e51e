//! `esker cluster`.

use serde_json::json;

use super::{Common, output};

pub(super) async fn run(common: &Common) -> anyhow::Result<()> {
    let cluster = common.connect().await?.admin().describe_cluster().await?;
    if common.json {
        let agents = cluster.agents.iter().map(|agent| {
            json!({
                "agent_id": agent.agent_id,
                "address": agent.address,
                "version": agent.version,
                "zone": agent.zone,
                "is_controller": agent.is_controller,
            })
        });
        return output::json(&json!({
            "cluster_id": cluster.cluster_id,
            "store": cluster.store,
            "agents": agents.collect::<Vec<_>>(),
        }));
    }
    output::line(format_args!(
        "cluster {}\nbucket  {}\n",
        cluster.cluster_id, cluster.store
    ))?;
    let mut table = output::table(&["AGENT", "ADDRESS", "ZONE", "VERSION", "ROLE"], &[]);
    for agent in cluster.agents {
        let role = if agent.is_controller {
            "controller"
        } else {
            ""
        };
        table.add_row([
            agent.agent_id,
            agent.address,
            agent.zone,
            agent.version,
            role.to_owned(),
        ]);
    }
    Ok(output::print(&table)?)
}
