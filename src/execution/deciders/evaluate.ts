import { recordUsage, recordUsageLater, type UsageDraft } from '#control/usage/meter.ts'
import { requirePermitted } from '#core/api/access.ts'
import { kinds } from '#core/api/kind.ts'
import { AppError, raise, recordedFailure } from '#core/base/errors.ts'
import { injectFault } from '#core/base/fault-injection.ts'
import type { Services } from '#core/base/services.ts'
import { isTransient } from '#core/db/database-errors.ts'
import { sql } from '#core/db/sql.ts'
import { openJson } from '#core/secrets/json.ts'
import type { WorkAttempt } from '#core/work/attempt.ts'
import { ClaimLostError, type JobContext } from '#core/work/handler.ts'
import { withoutRetries } from '#core/work/retry.ts'
import { isolateFailures } from '#core/work/sweeps.ts'
import { MAX_MESSAGE_LEASE_SECONDS, work } from '#core/work/work.ts'
import { callerForPrincipal } from '#identity/principals/principals.ts'
import { findAgentVersion } from '../agents/served-version.ts'
import { createTurn } from '../generations/request/create.ts'
import { callTool, openCall } from '../tools/call.ts'
import { lostCall } from '../tools/metering.ts'
import { type ToolRow, toolKind } from '../tools/model.ts'
import { requireCallableBackend } from './backend.ts'
import { type DecisionRow, decisionKind, decisionSeal, isDecisionSettled } from './model.ts'
import { answersSchema, questionMessage } from './prompt.ts'
import type { DecisionAnswer } from './questions.ts'
import { DECIDER_SOURCE, type DecisionOutcome, settleDecision } from './settle.ts'
import {
  type DecisionColumns,
  decisionColumns,
  deleteDecisionWork,
  findDecisionWork,
  findSealedInput,
  listOrphanedDecisions,
} from './store.ts'
import { toolAnswers } from './tool-answers.ts'

/** Orphaned decisions that one sweep settles. */
const ORPHANS = 500

/**
 * Returns the input of a decision.
 * @throws GENERATION_CONTENT_UNAVAILABLE, and the errors of decryption
 */
function openInput(services: Services, decision: DecisionRow, sealed: string | null): unknown {
  if (sealed === null)
    return raise('GENERATION_CONTENT_UNAVAILABLE', { message: `The input of decision ${decision.id} was erased` })
  return openJson(services, sealed, decisionSeal(decision), 'The input of the decision')
}

/**
 * Creates the agent turn of a decision unless it exists; updates the decision and deletes its work item in the same
 * transaction.
 */
async function startAgentTurn(decision_id: string, { services, log }: JobContext): Promise<void> {
  try {
    const created = await services.write(async tx => {
      const decision = await decisionKind.find(tx, decision_id, true)
      if (decision?.status !== 'queued') return null
      const pending = await findDecisionWork(tx, decision_id)
      // Claimed again after the project is resumed.
      if (!pending || pending.paused) return null
      const { project_id, asked, agent_id, agent_version } = decision
      const agent = await findAgentVersion(tx, agent_id as string, agent_version as number)
      if (!agent) return raise('AGENT_NOT_FOUND', { meta: { id: agent_id } })
      const { generation_id } = await createTurn(tx, services, {
        project_id,
        agent_id: agent.id,
        agent_version: agent_version as number,
        messages: [questionMessage(asked, openInput(services, decision, pending.sealed))],
        overrides: { output_schema: answersSchema(asked) },
        source: DECIDER_SOURCE,
        authority: pending.principal,
        permission: pending.permission,
        streamed: false,
        shape: 'agent',
      })
      await decisionKind.update(tx, decision_id, { status: 'running', generation_id })
      await deleteDecisionWork(tx, decision_id)
      return generation_id
    })
    if (created) log.info({ decision_id, generation_id: created, outcome: 'asked' }, 'decision')
  } catch (error) {
    if (!(error instanceof AppError) || error.code === 'SERVICE_NOT_READY' || isTransient(error)) throw error
    if (error.code === 'PROJECT_PAUSED') return
    await services.write(tx => settleDecision(tx, decision_id, { error: recordedFailure(error) }))
    log.info({ decision_id, outcome: 'failed', code: error.code, decision: 'abandoned' }, 'decision')
  }
}

const LOST = 'The workers of the decision were lost one after the other'

/** Usage of a call that a lost worker made; its input is not read again. */
const lostCallOf = ({ id, project_id, tool_id }: DecisionRow, tool: ToolRow | null): UsageDraft =>
  lostCall(tool ?? { id: tool_id, name: 'decider', project_id }, null, { source: 'decider', record: id }, null)

/** Makes a decision: creates the turn of an agent, which settles the decision, or calls a tool. */
export const decisionWork = work({
  name: 'decision.evaluate',
  concern: 'generation',
  entity: decisionKind,
  table: 'decision_attempts',
  entityColumn: 'decision_id',
  columns: decisionColumns,
  ids: ({ id, project_id }) => ({ decision_id: id, project_id }),
  leaseSeconds: config => Math.min(config.DECISION_LEASE_SECONDS, MAX_MESSAGE_LEASE_SECONDS),
  begin: sql.fragment`status = 'running', updated_at = now()`,
  pausable: true,
  retry: withoutRetries(2),
  lostError: () => new AppError('DECISION_INTERRUPTED', { message: LOST }),
  sweep: {
    seconds: config => Math.ceil(config.DECISION_SWEEP_INTERVAL_MS / 1000),
    also: settleOrphanedDecisions,
  },
  async beforeClaim({ entity_id }, context) {
    const decision = await decisionKind.find(context.services.pool, entity_id)
    if (!decision || isDecisionSettled(decision)) return true
    if (decision.agent_id === null) return false
    await startAgentTurn(entity_id, context)
    return true
  },
  async run(attempt) {
    const { services } = attempt
    const used: UsageDraft[] = []
    let end: DecisionOutcome
    try {
      end = { answers: await answersOf(attempt, used) }
    } catch (error) {
      if (error instanceof ClaimLostError || attempt.signal.aborted || isTransient(error)) throw error
      if (!(error instanceof AppError))
        services.log.error({ err: error, decision_id: attempt.entity.id }, 'decision failed')
      end = { error: recordedFailure(error) }
    }
    await injectFault(services, 'decision_answered')
    try {
      await attempt.settle(async tx => {
        await settleDecision(tx, attempt.entity.id, end)
        await recordUsage(services, used, tx)
      })
    } catch (error) {
      // The call was made; the idempotency key of the usage prevents a duplicate.
      recordUsageLater(services, used)
      throw error
    }
    return end.error ? { outcome: 'failed', code: end.error.code } : { outcome: 'completed' }
  },
  async fail(tx, { services, entity, claim, error }) {
    if (claim.called) {
      const used = [lostCallOf(entity, await toolKind.find(tx, entity.tool_id as string))]
      await recordUsage(services, used, tx)
    }
    await settleDecision(tx, entity.id, { error: recordedFailure(error) })
    return undefined
  },
})

/** Settles decisions whose turn was deleted with its agent. */
async function settleOrphanedDecisions(services: Services, stopping: AbortSignal): Promise<void> {
  for (const id of await listOrphanedDecisions(services.pool, ORPHANS)) {
    if (stopping.aborted) return
    await isolateFailures(services, { decision_id: id }, () =>
      services.write(tx => settleDecision(tx, id, { error: GONE })),
    )
  }
}

const GONE = { code: 'AGENT_NOT_FOUND', message: 'The agent was deleted before it answered' }

/**
 * Calls the tool of a decision with the permissions of the principal that requested it. A call whose worker was lost is
 * repeated only for an idempotent tool.
 * @throws DECISION_INTERRUPTED, TOOL_NOT_FOUND, FORBIDDEN, DECISION_ANSWER_INVALID, errors of the call, ClaimLostError
 */
async function answersOf(
  { services, claim, entity: decision, signal, set }: WorkAttempt<DecisionRow, DecisionColumns>,
  used: UsageDraft[],
): Promise<DecisionAnswer[]> {
  const { id, project_id, asked } = decision
  const { principal, permission } = claim
  const tool = await toolKind.find(services.pool, decision.tool_id as string)
  if (claim.called && !tool?.idempotent) {
    used.push(lostCallOf(decision, tool))
    return raise('DECISION_INTERRUPTED')
  }
  if (!tool) return raise('TOOL_NOT_FOUND', { meta: { id: decision.tool_id } })
  requireCallableBackend(tool)
  const input = openInput(services, decision, await findSealedInput(services.pool, id))
  const caller = await callerForPrincipal(services, principal, project_id)
  const target = { kind: kinds.get(permission.kind), row: { id: permission.id, project_id } }
  requirePermitted(caller, permission.action, target)
  await set(services.pool, sql.fragment`called = true`)
  const call = openCall(services, {
    input: { input, questions: asked },
    caller: () => callerForPrincipal(services, principal, project_id),
    idempotencyKey: id,
    metering: { source: 'decider', record: id, add: draft => void used.push(draft) },
    signal,
  })
  return toolAnswers(asked, await callTool(services, tool, call))
}
