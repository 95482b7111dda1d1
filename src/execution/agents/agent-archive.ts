import { effectiveAuthor } from '../../core/api/authors.ts'
import { pickFields, type Values } from '../../core/api/kind.ts'
import { type VersionAuthor, versionArchive } from '../../core/api/version-archive.ts'
import type { Tx } from '../../core/db/writer.ts'
import { boundIds } from './bindings.ts'
import { type AgentConfig, type AgentRow, AgentVersion, agentKind, configFields } from './model.ts'

/** What an agent's version says beside: the evaluation that it was made by. */
type AgentMaking = VersionAuthor & { eval_run_id?: string | null }

/** The configuration of an agent as it is. */
export const configOf = (agent: AgentRow): AgentConfig => pickFields(agent, configFields) as AgentConfig

/** Of a field that is not set. */
const unset = (name: keyof AgentConfig) => (name === 'single_session_per_actor' ? false : null)

/**
 * The configuration that a version kept, in the fields of this release: those it did not know are not set, those that
 * only another release knows are left out.
 */
export const readConfig = (kept: Record<string, unknown>): AgentConfig =>
  Object.fromEntries(configFields.map(name => [name, kept[name] ?? unset(name)])) as AgentConfig

export const agentVersions = versionArchive({
  table: 'agent_versions',
  owner: 'agent_id',
  prefix: 'agver',
  record: AgentVersion,
  read: readConfig,
})

/** Adds an agent with its first version. */
export async function insertAgent(tx: Tx, values: Values<AgentRow>, making: AgentMaking): Promise<AgentRow> {
  const named = boundIds(values.tool_bindings ?? null)
  const agent = await agentKind.insert(tx, { ...values, ...named, author: making.author })
  await archive(tx, agent, making)
  return agent
}

/** Writes the next version of an agent whose row the caller holds. */
export async function changeAgent(
  tx: Tx,
  stored: AgentRow,
  values: Values<AgentRow>,
  making: AgentMaking,
): Promise<AgentRow> {
  const named = values.tool_bindings === undefined ? {} : boundIds(values.tool_bindings)
  const author = effectiveAuthor(values).length > 0 ? making.author : stored.author
  const agent = await agentKind.update(tx, stored.id, { ...values, ...named, author, version: stored.version + 1 })
  await archive(tx, agent, making)
  return agent
}

/** Makes somebody the author of an agent whose row the caller holds: the next version, with the same configuration. */
export async function adoptAgent(tx: Tx, stored: AgentRow, making: AgentMaking): Promise<AgentRow> {
  const agent = await agentKind.update(tx, stored.id, { author: making.author, version: stored.version + 1 })
  await archive(tx, agent, making)
  return agent
}

const archive = (
  tx: Tx,
  agent: AgentRow,
  { created_by, label = null, eval_run_id = null }: Omit<AgentMaking, 'author'>,
) =>
  agentVersions.insert(tx, {
    agent_id: agent.id,
    version: agent.version,
    config: configOf(agent),
    label,
    eval_run_id,
    created_by,
    author: agent.author,
  })
