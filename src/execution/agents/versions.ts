import type { Context } from '../../core/api/operation.ts'
import { requireReferences } from '../../core/api/references.ts'
import { parse } from '../../core/api/validate.ts'
import { madeBy } from '../../core/api/version-archive.ts'
import { requireVersion } from '../../core/api/versions.ts'
import { removedGuardrails, requireDetach } from '../../identity/guardrail-ids.ts'
import { agentVersions, changeAgent, readConfig } from './agent-archive.ts'
import { AgentConfig, type AgentRow, agentKind } from './model.ts'
import { checkConfig } from './operations.ts'

/**
 * Validates an earlier configuration as one that is written today, and keeps what it names from being deleted. Raises
 * what refuses an update.
 */
export async function requireValidAgentConfig(
  context: Pick<Context, 'tx' | 'services' | 'allow' | 'caller'>,
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
export async function restoreAgentVersion(
  context: Pick<Context, 'tx' | 'services' | 'allow' | 'allowed' | 'caller' | 'audit'> & { resource: AgentRow },
  number: number,
  { label, expected_version }: { label?: string; expected_version?: number },
): Promise<AgentRow> {
  const { tx, caller, audit } = context
  const stored = await agentKind.lock(tx, context.resource.id)
  requireVersion(stored, expected_version)
  const config = readConfig((await agentVersions.get(tx, stored.id, number)).config)
  const changes = agentKind.changes(stored, { ...stored, ...config })
  if (Object.keys(changes).length === 0) return stored
  requireDetach(context, stored.project_id, removedGuardrails([stored.guardrail_ids], [config.guardrail_ids]))
  await requireValidAgentConfig(context, stored, config)
  const restored = await changeAgent(tx, stored, changes, madeBy(caller, label ?? `restored from v${number}`))
  audit.detail.version = restored.version
  tx.emit(agentKind, 'updated', restored)
  return restored
}
