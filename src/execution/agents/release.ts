import type { z } from 'zod'
import type { Context } from '#core/api/operation.ts'
import { requireReferences } from '#core/api/references.ts'
import { systemClock } from '#core/base/clock.ts'
import { extensionPoint } from '#core/base/declarations.ts'
import { AppError, raise, raiseInvalid } from '#core/base/errors.ts'
import type { Queryable } from '#core/db/sql.ts'
import { requireVersion } from '#core/resources/version.ts'
import { removedGuardrails, requireDetach } from '#identity/projects/guardrail-ids.ts'
import { checkBinding, requireValidAgentConfig } from './check.ts'
import {
  type ActiveRelease,
  type AgentConfig,
  type AgentRow,
  agentKind,
  type ReleaseInput,
  readConfig,
} from './model.ts'
import { setEvalRun } from './store.ts'
import { agentVersions } from './versions.ts'

/** Evals as promotion gates, contributed by the eval module, which builds on agents. Without it no gate exists. */
export type PromotionGates = {
  /** Whether the eval belongs to the agent. */
  exists(db: Queryable, agent: Pick<AgentRow, 'id' | 'project_id'>, evalId: string): Promise<boolean>
  /** Returns the newest run of the eval that a version of the agent passed, or null. */
  passedRun(
    db: Queryable,
    agent: Pick<AgentRow, 'id' | 'project_id'>,
    evalId: string,
    version: number,
  ): Promise<string | null>
}

export const promotionGates = extensionPoint<PromotionGates>({
  name: 'promotion gates',
  folder: 'execution/agents',
  description: 'Finds the evals that a version of an agent must pass before its promotion',
})

type ReleaseContext = Pick<Context, 'tx' | 'services' | 'allow' | 'caller' | 'audit' | 'allowed'> & {
  resource: AgentRow
}

/**
 * Starts a release or replaces the active one. From then on turns get one of two versions, and the agent's own
 * configuration is a draft.
 * @throws VALIDATION_FAILED at a version that cannot be served or an unknown gate, VERSION_CONFLICT
 */
export async function setRelease(context: ReleaseContext, body: z.output<typeof ReleaseInput>): Promise<AgentRow> {
  const { tx, caller, audit } = context
  const { stable_version, canary_version, canary_percent, promotion_gate = null } = body
  const stored = await agentKind.lock(tx, context.resource.id)
  requireVersion(stored, body.expected_version)
  if (stable_version === canary_version)
    raiseInvalid({
      code: 'INVALID_VALUE',
      path: 'canary_version',
      message: 'must differ from stable_version',
    })
  const configs = [
    await requireServable(context, stored, 'stable_version', stable_version),
    await requireServable(context, stored, 'canary_version', canary_version),
  ]
  if (promotion_gate !== null && !(await promotionGates.only()?.exists(tx, stored, promotion_gate)))
    raiseInvalid({ code: 'INVALID_VALUE', path: 'promotion_gate', message: 'must be an eval of the agent' })
  await requireDetachOfLost(context, stored, configs)
  const release: ActiveRelease = {
    stable_version,
    canary_version,
    canary_percent,
    promotion_gate,
    started_at: systemClock.now().toISOString(),
    started_by: caller.user.id,
  }
  audit.detail.release = release
  const released = await agentKind.update(tx, stored.id, {
    active_release: release,
    release_references: [...new Set(configs.flatMap(referencedIds))],
  })
  tx.emit(agentKind, 'release_started', released, { extra: { release } })
  return released
}

/**
 * Returns the configuration of a version if it can be served.
 * @throws VALIDATION_FAILED at the field of the version
 */
async function requireServable(
  context: ReleaseContext,
  agent: AgentRow,
  path: 'stable_version' | 'canary_version',
  number: number,
): Promise<AgentConfig> {
  const [version] = await agentVersions.find(context.tx, agent.id, [number])
  if (!version) return raiseInvalid({ code: 'NOT_FOUND', path, message: 'is not a version of the agent' })
  const config = readConfig(version.config)
  try {
    await requireValidAgentConfig(context, agent, config)
    return config
  } catch (error) {
    if (!(error instanceof AppError) || error.status !== 400) throw error
    const [problem] = (error.meta?.problems ?? []) as { path: string; message: string }[]
    const reason = problem ? `${problem.path} ${problem.message}` : error.message
    return raiseInvalid({ code: error.code, path, message: `is no longer a valid configuration: ${reason}` })
  }
}

/** Returns the configurations that turns of an agent currently get. */
async function servedConfigs(db: Queryable, agent: AgentRow): Promise<Pick<AgentConfig, 'guardrail_ids'>[]> {
  const release = agent.active_release
  if (!release) return [agent]
  const versions = await agentVersions.find(db, agent.id, [release.stable_version, release.canary_version])
  return versions.map(({ config }) => readConfig(config))
}

/** Requires permission to detach each guardrail that some turns lose under the `next` configurations. */
async function requireDetachOfLost(
  context: ReleaseContext,
  agent: AgentRow,
  next: readonly AgentConfig[],
): Promise<void> {
  const lists = (configs: readonly Pick<AgentConfig, 'guardrail_ids'>[]) => configs.map(each => each.guardrail_ids)
  const lost = removedGuardrails(lists(await servedConfigs(context.tx, agent)), lists(next))
  requireDetach(context, agent.project_id, lost)
}

/** Returns the ids in a configuration, by the references that agents declare. */
const referencedIds = (config: AgentConfig): string[] => {
  const columns: Record<string, unknown> = {
    ...config,
    summary_model_route_id: config.context_policy?.summary_model_route_id,
  }
  return agentKind.references.flatMap(({ column }) => [columns[column]].flat().filter(id => typeof id === 'string'))
}

/**
 * Ends a release with one of its versions, whose configuration becomes the agent's as a new version unless it is the
 * current one. Promotion requires a passed gate and a configuration that is still valid; an abort checks only
 * references.
 * @throws NO_ACTIVE_RELEASE, PROMOTION_GATE_UNMET, and the errors of an update
 */
export async function endRelease(context: ReleaseContext, outcome: 'promoted' | 'aborted'): Promise<AgentRow> {
  const { tx, caller, audit } = context
  const stored = await agentKind.lock(tx, context.resource.id)
  const release = stored.active_release
  if (!release) return raise('NO_ACTIVE_RELEASE', { meta: { agent_id: stored.id } })
  const number = outcome === 'promoted' ? release.canary_version : release.stable_version
  const config = readConfig((await agentVersions.get(tx, stored.id, number)).config)
  await requireDetachOfLost(context, stored, [config])
  if (outcome === 'promoted') await requireValidAgentConfig(context, stored, config)
  else {
    await checkBinding(config, tx, stored.project_id)
    await requireReferences(tx, agentKind, stored.project_id, config)
  }
  const eval_run_id = outcome === 'promoted' ? await requirePassedGate(tx, stored, release) : null

  const ended = { active_release: null, release_references: null }
  const changes = agentKind.changes(stored, { ...stored, ...config })
  const live = Object.keys(changes).length === 0
  const agent = live
    ? await agentKind.update(tx, stored.id, ended)
    : await agentVersions.change(
        tx,
        stored,
        { ...changes, ...ended },
        {
          created_by: caller.user.id,
          // The author of that version stays responsible for it.
          author: await agentVersions.authorOf(tx, stored.id, number),
          label: `${outcome} ${outcome === 'promoted' ? 'from' : 'to'} v${number}`,
        },
      )
  if (eval_run_id) await setEvalRun(tx, agent.id, agent.version, eval_run_id)
  Object.assign(audit.detail, { release, version: agent.version })
  tx.emit(agentKind, `release_${outcome}`, agent, { extra: { release } })
  return agent
}

/**
 * Returns the eval run with which the canary passed the gate of its release, or null without a gate.
 * @throws PROMOTION_GATE_UNMET
 */
async function requirePassedGate(db: Queryable, agent: AgentRow, release: ActiveRelease): Promise<string | null> {
  const { promotion_gate, canary_version } = release
  if (promotion_gate === null) return null
  const run = await promotionGates.only()?.passedRun(db, agent, promotion_gate, canary_version)
  return run ?? raise('PROMOTION_GATE_UNMET', { meta: { promotion_gate, agent_version: canary_version } })
}
