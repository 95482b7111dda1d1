import type { Context } from '../../core/api/operation.ts'
import { requireReferences } from '../../core/api/references.ts'
import { parse } from '../../core/api/validate.ts'
import { versionAuthor } from '../../core/api/version-archive.ts'
import { requireVersion } from '../../core/api/versions.ts'
import { removedGuardrails, requireDetach } from '../../identity/guardrail-ids.ts'
import { agentVersions, changeAgent, readConfig } from './agent-archive.ts'
import { AgentConfig, type AgentRow, agentKind } from './model.ts'
import { checkConfig } from './operations.ts'

/**
 * Validates an earlier configuration like a new write and locks the resources that it references against deletion.
 * @throws the errors of an update
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
 * Restores the configuration of an earlier version as the next one, unless it equals the current one.
 * @throws RESOURCE_NOT_FOUND, VERSION_CONFLICT, and the errors of an update
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
  const restored = await changeAgent(tx, stored, changes, versionAuthor(caller, label ?? `restored from v${number}`))
  audit.detail.version = restored.version
  tx.emit(agentKind, 'updated', restored)
  return restored
}
