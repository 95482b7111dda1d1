import { definitionOf } from '#core/api/authors.ts'
import { raise, raiseInvalidValue } from '#core/base/errors.ts'
import { newId } from '#core/base/ids.ts'
import type { Services } from '#core/base/services.ts'
import { narrowAuthority } from '#core/iam/authority.ts'
import type { PrincipalRecord } from '#core/iam/caller.ts'
import type { Tx } from '#core/writes/writer.ts'
import { agentKind } from '#execution/agents/model.ts'
import { findAgentVersion } from '#execution/agents/served-version.ts'
import { agentVersions } from '#execution/agents/versions.ts'
import { lockUnpaused } from '#identity/projects/pause.ts'
import { checkScorers } from '../evals/check.ts'
import { type EvalRow, evalKind } from '../evals/model.ts'
import { sealEvalContext } from './context.ts'
import { type EvalRunRow, evalResultKind, evalRunKind, isLive, type PinnedDecider } from './model.ts'
import { wakeItem } from './process-item.ts'
import { insertEvalItems, lockDatasetItems } from './store.ts'

/** Parameters of a run. */
export type EvalStart = {
  id?: string
  /** Whether a caller waits for the run; it then has few items, with a higher priority. */
  wait?: boolean
  agent_version?: number | null
  baseline_run_id?: string | null
  metadata?: Record<string, unknown> | null
  tool_context?: Record<string, string> | null
  authority: PrincipalRecord
  trigger_id?: string | null
}

const WAITED_PRIORITY = 1

/**
 * Creates a queued run with its items and their messages.
 * @throws RESOURCE_NOT_FOUND, PROJECT_PAUSED, VALIDATION_FAILED, TOOL_NOT_FOUND, AI_PROVIDER_NOT_FOUND
 */
export async function startEval(
  tx: Tx,
  services: Services,
  { id: evalId, project_id }: Pick<EvalRow, 'id' | 'project_id'>,
  start: EvalStart,
): Promise<EvalRunRow> {
  await lockUnpaused(tx, project_id)
  const row = await evalKind.lock(tx, evalId)
  const items = await lockDatasetItems(tx, row.dataset_id)
  if (items.length === 0) raiseInvalidValue('dataset_id', 'is a dataset without items')
  const { EVAL_SYNC_ITEM_CAP: cap } = services.config
  if (start.wait && items.length > cap)
    raiseInvalidValue('wait', `is allowed for at most ${cap} items, and the dataset has ${items.length}`)
  const agent_version = await resolveAgentVersion(tx, row, start.agent_version ?? null)
  const agent = await findAgentVersion(tx, row.agent_id, agent_version)
  const { deciders } = await checkScorers(
    { tx, services, project: project_id },
    row.scorers,
    agent ?? { output_schema: null },
  )
  if (start.baseline_run_id != null) await requireBaseline(tx, row, start.baseline_run_id)
  const id = start.id ?? newId(evalRunKind.prefix)
  const run = await evalRunKind.insert(tx, {
    id,
    project_id,
    eval_id: row.id,
    eval_revision: row.revision,
    agent_id: row.agent_id,
    agent_version,
    scorers: row.scorers,
    pass_threshold: row.pass_threshold,
    max_error_rate: row.max_error_rate,
    group_by: row.group_by,
    ...(deciders.size === 0 ? {} : pinDeciders(deciders)),
    baseline_run_id: start.baseline_run_id ?? null,
    trigger_id: start.trigger_id ?? null,
    item_count: items.length,
    metadata: start.metadata ?? null,
    context: sealEvalContext(services, { id, project_id }, start.tool_context ?? null),
    authority: narrowAuthority(start.authority, definitionOf(row)),
    waited: start.wait ?? false,
  })
  const results = items.map(item_id => ({ id: newId(evalResultKind.prefix), item_id }))
  await insertEvalItems(tx, run, results)
  for (const { id } of results) wakeItem(tx, { id, project_id }, start.wait ? WAITED_PRIORITY : 0)
  return run
}

/**
 * Returns the agent version for a run: the requested one, the stable one of the active release, or the current one.
 * @throws VALIDATION_FAILED, AGENT_NOT_FOUND
 */
async function resolveAgentVersion(
  tx: Tx,
  { agent_id, project_id }: EvalRow,
  requested: number | null,
): Promise<number> {
  if (requested !== null) {
    const [version] = await agentVersions.find(tx, agent_id, [requested])
    return version ? requested : raiseInvalidValue('agent_version', 'is not a version of the agent')
  }
  const agent = await agentKind.reference(tx, agent_id, project_id)
  if (!agent) return raise('AGENT_NOT_FOUND', { meta: { id: agent_id } })
  return agent.active_release?.stable_version ?? agent.version
}

const pinDeciders = (
  deciders: ReadonlyMap<string, { id: string; version: number } & Omit<PinnedDecider, 'id' | 'version'>>,
) => ({
  decider_versions: Object.fromEntries([...deciders].map(([name, { version }]) => [name, version])),
  deciders: Object.fromEntries(
    [...deciders].map(([name, { id, version, author, questions, agent_id, tool_id }]) => [
      name,
      { id, version, author, questions, agent_id, tool_id },
    ]),
  ),
})

async function requireBaseline(tx: Tx, { id }: EvalRow, baselineId: string): Promise<void> {
  const baseline = await evalRunKind.find(tx, baselineId)
  if (baseline?.eval_id !== id) raiseInvalidValue('baseline_run_id', 'is not a run of this eval')
  else if (isLive(baseline)) raiseInvalidValue('baseline_run_id', 'must be a run that has ended')
}
