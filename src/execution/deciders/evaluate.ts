import { recordUsage, type UsageDraft } from '../../control/usage/meter.ts'
import { AppError, raise, recordedFailure } from '../../core/api/errors.ts'
import { kinds } from '../../core/api/kind.ts'
import { isTransient } from '../../core/db/database-errors.ts'
import { sql } from '../../core/db/sql.ts'
import type { Tx } from '../../core/db/writer.ts'
import { requirePermitted } from '../../core/iam/access.ts'
import type { JobContext } from '../../core/jobs/handler.ts'
import { ClaimLostError, claimOrReschedule, type Lease, leaseTimings, processClaim } from '../../core/jobs/work-item.ts'
import { injectFault } from '../../core/process/fault-injection.ts'
import type { Services } from '../../core/process/services.ts'
import { openJson } from '../../core/secrets/json.ts'
import { callerForPrincipal } from '../../identity/principals.ts'
import { findAgentVersion } from '../agents/served-version.ts'
import { createTurn } from '../generations/request/create.ts'
import { callTool, openCall } from '../tools/call.ts'
import { lostCall } from '../tools/metering.ts'
import { type ToolRow, toolKind } from '../tools/model.ts'
import { requireCallableBackend } from './backend.ts'
import { decisionSeal } from './create-decisions.ts'
import { type DecisionRow, decisionKind, isDecisionSettled } from './model.ts'
import { answersSchema, questionMessage } from './prompt.ts'
import type { DecisionAnswer } from './questions.ts'
import { type DecisionMessage, decisionQueue } from './queue.ts'
import { DECIDER_SOURCE, type DecisionOutcome, settleDecision } from './settle.ts'
import { type DecisionClaim, decisionAttempts, deleteDecisionWork, findDecisionWork, hasCalledTool } from './store.ts'
import { toolAnswers } from './tool-answers.ts'

/** Lease duration and renewal interval of a worker. */
const ownLease = ({ config }: Pick<Services, 'config'>): Lease => leaseTimings(config.DECISION_LEASE_SECONDS * 1000)

/**
 * Makes a decision: creates the turn of the agent, which settles the decision, or calls the tool and settles it. Throws
 * errors that could not be recorded, and HandBack when the worker stops.
 */
export async function processDecision(message: DecisionMessage, context: JobContext): Promise<void> {
  const decision = await decisionKind.find(context.services.pool, message.decision_id)
  if (!decision || isDecisionSettled(decision)) return
  if (decision.agent_id !== null) await startAgentTurn(message, context)
  else await evaluateWithTool(message, context)
}

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
async function startAgentTurn({ decision_id }: DecisionMessage, { services, log }: JobContext): Promise<void> {
  try {
    const created = await services.write(async tx => {
      const decision = await decisionKind.find(tx, decision_id, true)
      if (decision?.status !== 'queued') return null
      const work = await findDecisionWork(tx, decision_id)
      // Claimed again after the project is resumed.
      if (!work || work.paused) return null
      const { project_id, asked, agent_id, agent_version } = decision
      const agent = await findAgentVersion(tx, agent_id as string, agent_version as number)
      if (!agent) return raise('AGENT_NOT_FOUND', { meta: { id: agent_id } })
      const { generation_id } = await createTurn(tx, services, {
        project_id,
        agent_id: agent.id,
        agent_version: agent_version as number,
        messages: [questionMessage(asked, openInput(services, decision, work.sealed))],
        overrides: { output_schema: answersSchema(asked) },
        source: DECIDER_SOURCE,
        authority: work.principal,
        permission: work.permission,
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

/** Calls the tool of a decision and settles it, unless another worker has claimed it. */
async function evaluateWithTool(message: DecisionMessage, context: JobContext): Promise<void> {
  const { services } = context
  const claimed = await services.write(tx => claimDecision(tx, services, message))
  if (!claimed) return
  const { claim, decision } = claimed
  const used: UsageDraft[] = []
  const settleWithUsage = async (tx: Tx, outcome: DecisionOutcome) => {
    await settleClaimed(tx, claim, outcome)
    await recordUsage(services, used, tx)
  }
  await processClaim(context, {
    what: 'decision',
    ids: { decision_id: decision.id, project_id: decision.project_id },
    attempts: decisionAttempts,
    claim,
    lease: ownLease(services),
    lock: tx => decisionKind.find(tx, decision.id, true),
    async work(lease) {
      await injectFault(services, 'decision_claimed')
      const answers = await callDecisionTool(services, claimed, used, lease.signal)
      await injectFault(services, 'decision_answered')
      await lease.write(tx => settleWithUsage(tx, { answers }))
      return { outcome: 'completed' }
    },
    async fail(error) {
      if (!(error instanceof AppError)) services.log.error({ err: error, decision_id: decision.id }, 'decision failed')
      const failure = recordedFailure(error)
      await services.write(tx => settleWithUsage(tx, { error: failure }))
      return { outcome: 'failed', code: failure.code, decision: 'abandoned' }
    },
  })
}

type ClaimedDecision = { claim: DecisionClaim; decision: DecisionRow; sealed: string | null }

/**
 * Claims the work item of a decision; if another worker has a valid lease, schedules another attempt for its expiry.
 */
async function claimDecision(tx: Tx, services: Services, message: DecisionMessage): Promise<ClaimedDecision | null> {
  const ref = { entity: message.decision_id, id: message.attempt_id }
  const decision = await decisionKind.find(tx, ref.entity, true)
  const work = decision && (await findDecisionWork(tx, decision.id))
  if (!work) return null
  // Claimed again after the project is resumed; a running decision continues.
  if (work.paused && decision.status === 'queued') return null
  const claim = await claimOrReschedule(tx, decisionAttempts, ref, ownLease(services), decisionQueue, message)
  if (claim === 'held') return null
  if (!claim) {
    await abandonDecision(tx, services, message, new AppError('DECISION_INTERRUPTED', { message: WORKERS_LOST }))
    return null
  }
  await decisionKind.update(tx, decision.id, { status: 'running' })
  return { claim, decision, sealed: work.sealed }
}

/** Returns the usage of a call that a lost worker may have made, without its arguments. */
const lostCallOf = ({ id, project_id, tool_id }: DecisionRow, tool: ToolRow | null): UsageDraft =>
  lostCall(tool ?? { id: tool_id, name: 'decider', project_id }, null, { source: 'decider', record: id }, null)

const WORKERS_LOST = 'Decision abandoned after too many lost workers'

/** Settles a decision without a live worker as failed. */
export async function abandonDecision(
  tx: Tx,
  services: Services,
  message: DecisionMessage,
  error: unknown,
): Promise<void> {
  const { decision_id, attempt_id } = message
  const decision = await decisionKind.find(tx, decision_id, true)
  if (!decision) return
  const called = await hasCalledTool(tx, decision_id)
  if (!(await decisionAttempts.endIdle(tx, { entity: decision_id, id: attempt_id }))) return
  if (called)
    await recordUsage(services, [lostCallOf(decision, await toolKind.find(tx, decision.tool_id as string))], tx)
  await settleDecision(tx, decision_id, { error: recordedFailure(error) })
}

/**
 * Settles a decision under its claim.
 * @throws ClaimLostError
 */
async function settleClaimed(tx: Tx, claim: DecisionClaim, outcome: DecisionOutcome): Promise<void> {
  await decisionKind.find(tx, claim.entity, true)
  if (!(await decisionAttempts.end(tx, claim))) throw new ClaimLostError()
  await settleDecision(tx, claim.entity, outcome)
}

/**
 * Calls the tool with the permissions of the principal that requested the decision. A call whose worker was lost is
 * repeated only for an idempotent tool.
 * @throws DECISION_INTERRUPTED, TOOL_NOT_FOUND, FORBIDDEN, DECISION_ANSWER_INVALID, the errors of the call,
 *   ClaimLostError
 */
async function callDecisionTool(
  services: Services,
  { claim, decision, sealed }: ClaimedDecision,
  used: UsageDraft[],
  signal: AbortSignal,
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
  const input = openInput(services, decision, sealed)
  const caller = await callerForPrincipal(services, principal, project_id)
  const target = { kind: kinds.get(permission.kind), row: { id: permission.id, project_id } }
  requirePermitted(caller, permission.action, target)
  if (!(await decisionAttempts.set(services.pool, claim, sql.fragment`called = true`))) throw new ClaimLostError()
  const call = openCall(services, {
    input: { input, questions: asked },
    caller: () => callerForPrincipal(services, principal, project_id),
    idempotencyKey: id,
    metering: { source: 'decider', record: id, add: draft => void used.push(draft) },
    signal,
  })
  return toolAnswers(asked, await callTool(services, tool, call))
}
