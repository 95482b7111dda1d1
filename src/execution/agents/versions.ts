import { changesBetween } from '../../core/api/compare.ts'
import { raise } from '../../core/api/errors.ts'
import type { Context } from '../../core/api/operation.ts'
import { requireReferences } from '../../core/api/references.ts'
import { parse } from '../../core/api/validate.ts'
import { requireVersion } from '../../core/api/versions.ts'
import type { Queryable } from '../../core/db/sql.ts'
import { changeAgent, readConfig } from './archive.ts'
import { AgentConfig, type AgentRow, type AgentVersion, agentKind } from './model.ts'
import { checkConfig } from './operations.ts'
import { findVersions } from './store.ts'

/** One version of an agent. Raises RESOURCE_NOT_FOUND for a number that does not exist. */
export async function versionOf(db: Queryable, id: string, number: number): Promise<AgentVersion> {
  const [found] = await findVersions(db, id, [number])
  return found ?? raise('RESOURCE_NOT_FOUND', { meta: { id, version: number } })
}

/**
 * What changed from one version to another; without numbers, from the one before the newest to the newest. Raises
 * RESOURCE_NOT_FOUND for a number that does not exist.
 */
export async function compareVersions(db: Queryable, agent: AgentRow, asked: { from?: number; to?: number }) {
  const to = asked.to ?? agent.version
  const from = asked.from ?? Math.max(1, to - 1)
  const found = new Map((await findVersions(db, agent.id, [from, to])).map(version => [version.version, version]))
  const configAt = (number: number) => {
    const version = found.get(number)
    return version
      ? readConfig(version.config)
      : raise('RESOURCE_NOT_FOUND', { meta: { id: agent.id, version: number } })
  }
  const after = configAt(to)
  // An agent that is older than its archive has nothing before its first version there.
  if (asked.from === undefined && !found.has(from)) return { from: to, to, changes: [] }
  return { from, to, changes: changesBetween(configAt(from), after) }
}

/**
 * Validates an earlier configuration as one that is written today, and keeps what it names from being deleted. Raises
 * what refuses an update.
 */
export async function requireValid(
  context: Pick<Context, 'tx' | 'services' | 'allow'>,
  agent: AgentRow,
  config: AgentConfig,
): Promise<void> {
  const body = parse(AgentConfig, config)
  await checkConfig(body, body, context, agent.project_id, agent)
  await requireReferences(context.tx, agentKind, agent.project_id, body)
}

/**
 * Writes the configuration of an earlier version as the next one, unless it is what the agent has. Raises
 * RESOURCE_NOT_FOUND, VERSION_CONFLICT, and what refuses an update.
 */
export async function restoreVersion(
  context: Pick<Context, 'tx' | 'services' | 'allow' | 'caller' | 'audit'> & { resource: AgentRow },
  number: number,
  { label, expected_version }: { label?: string; expected_version?: number },
): Promise<AgentRow> {
  const { tx, caller, audit } = context
  const stored = await agentKind.lock(tx, context.resource.id)
  requireVersion(stored, expected_version)
  const config = readConfig((await versionOf(tx, stored.id, number)).config)
  const changes = agentKind.changes(stored, { ...stored, ...config })
  if (Object.keys(changes).length === 0) return stored
  await requireValid(context, stored, config)
  const restored = await changeAgent(tx, stored, changes, {
    created_by: caller.user.id,
    label: label ?? `restored from v${number}`,
  })
  audit.detail.version = restored.version
  tx.emit(agentKind, 'updated', restored)
  return restored
}
