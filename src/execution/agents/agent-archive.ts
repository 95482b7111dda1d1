import { behaviourColumns } from '../../core/api/authors.ts'
import { pickFields, type Values } from '../../core/api/kind.ts'
import { type VersionAuthor, versionArchive } from '../../core/api/version-archive.ts'
import type { Tx } from '../../core/db/writer.ts'
import { boundIds } from './bindings.ts'
import { type AgentConfig, type AgentRow, AgentVersion, agentKind, configFields } from './model.ts'

/** Author of an agent version, and the eval run whose passing promoted it. */
type AgentVersionAuthor = VersionAuthor & { eval_run_id?: string | null }

/** Returns the current configuration of an agent. */
export const configOf = (agent: AgentRow): AgentConfig => pickFields(agent, configFields) as AgentConfig

/** Value of a field that a stored version does not have. */
const unset = (name: keyof AgentConfig) => (name === 'single_session_per_actor' ? false : null)

/**
 * Returns the configuration of a stored version in the fields of this release. Fields that the version lacks are unset,
 * fields of other releases are dropped.
 */
export const readConfig = (stored: Record<string, unknown>): AgentConfig =>
  Object.fromEntries(configFields.map(name => [name, stored[name] ?? unset(name)])) as AgentConfig

export const agentVersions = versionArchive({
  table: 'agent_versions',
  owner: 'agent_id',
  prefix: 'agver',
  record: AgentVersion,
  read: readConfig,
})

/** Inserts an agent with its first version. */
export async function insertAgent(tx: Tx, values: Values<AgentRow>, authorship: AgentVersionAuthor): Promise<AgentRow> {
  const referenced = boundIds(values.tool_bindings ?? null)
  const agent = await agentKind.insert(tx, { ...values, ...referenced, author: authorship.author })
  await insertVersion(tx, agent, authorship)
  return agent
}

/** Updates an agent and inserts its next version. The caller has locked the row. */
export async function changeAgent(
  tx: Tx,
  stored: AgentRow,
  values: Values<AgentRow>,
  authorship: AgentVersionAuthor,
): Promise<AgentRow> {
  const referenced = values.tool_bindings === undefined ? {} : boundIds(values.tool_bindings)
  const author = behaviourColumns(values).length > 0 ? authorship.author : stored.author
  const agent = await agentKind.update(tx, stored.id, { ...values, ...referenced, author, version: stored.version + 1 })
  await insertVersion(tx, agent, authorship)
  return agent
}

/** Replaces the author of an agent as its next version, with the same configuration. The caller has locked the row. */
export async function adoptAgent(tx: Tx, stored: AgentRow, authorship: AgentVersionAuthor): Promise<AgentRow> {
  const agent = await agentKind.update(tx, stored.id, { author: authorship.author, version: stored.version + 1 })
  await insertVersion(tx, agent, authorship)
  return agent
}

const insertVersion = (
  tx: Tx,
  agent: AgentRow,
  { created_by, label = null, eval_run_id = null }: Omit<AgentVersionAuthor, 'author'>,
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
