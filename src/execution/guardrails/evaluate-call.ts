import { fileExceptionLater } from '#control/exceptions/file-exception.ts'
import { eventLoopYielder } from '#core/base/event-loop.ts'
import { newId } from '#core/base/ids.ts'
import type { Services } from '#core/base/services.ts'
import type { GateRequest, ToolGate, Verdict } from '../tools/guardrail-gate.ts'
import { classifyText, type Facts, snapshotOf } from './classify.ts'
import { type GuardrailRule, mayRequireApproval, missingGuardrailRule } from './document.ts'
import { deferEvaluations, nodeSubject, recordEvaluations } from './evaluation-records.ts'
import { guardrailCache } from './guardrail-cache.ts'
import { guardrailContext } from './guardrail-context.ts'
import {
  APPROVAL_SECONDS,
  type Evaluation,
  evaluationKind,
  GUARDRAIL_SCOPES,
  type GuardrailDecision,
  type GuardrailDocument,
  type GuardrailScope,
  guardrailKind,
} from './model.ts'
import { readRuntime } from './runtime.ts'
import type { RuntimeSubject } from './usage.ts'
import { warningsFor } from './warnings.ts'

/** Decisions from mildest to strictest. */
const STRICTNESS: readonly GuardrailDecision[] = ['execute', 'route_to_approval', 'tripwire', 'blocked']

/** Milliseconds of rule evaluation before the call yields to the event loop. */
const SLICE_MS = 5

type AppliedRule = { scope: GuardrailScope; rule: GuardrailRule }
type Attachment = Pick<GateRequest, 'project_id' | 'agent'> & { tool: Pick<GateRequest['tool'], 'guardrail_ids'> }

/** Call to evaluate, real or tried. */
export type EvaluatedCall = RuntimeSubject &
  Pick<GateRequest, 'args' | 'guardrail_context' | 'caller' | 'generation_id'> & { keepsContent: boolean }

/** Returns the rules of a call: project, agent, tool, each in attachment order. */
async function rulesFor(services: Services, { project_id, agent, tool }: Attachment): Promise<AppliedRule[]> {
  const { projects, rules } = guardrailCache(services)
  const { guardrail_ids } = await projects.get(project_id)
  const ids: Record<GuardrailScope, readonly string[] | null | undefined> = {
    project: guardrail_ids,
    agent: agent?.guardrail_ids,
    tool: tool.guardrail_ids,
  }
  const attached = GUARDRAIL_SCOPES.flatMap(scope => (ids[scope] ?? []).map(id => ({ scope, id })))
  const cached = await Promise.all(attached.map(({ id }) => rules.get(id)))
  return attached.map(({ scope, id }, index) => {
    const { rule } = cached[index]
    return { scope, rule: rule?.project_id === project_id ? rule : missingGuardrailRule(id, project_id) }
  })
}

/** Returns the evaluation of each rule for a call, in order. */
export async function evaluateRules(
  services: Services,
  applied: readonly AppliedRule[],
  call: EvaluatedCall,
): Promise<Evaluation[]> {
  const { args, tool, action, agent, run, generation_id, keepsContent } = call
  const runtime = await readRuntime(services, call, new Set(applied.flatMap(({ rule }) => rule.paths)))
  const contexts = await Promise.all(applied.map(({ rule }) => guardrailContext(services, rule, call)))
  const evaluations: Evaluation[] = []
  const yieldToEventLoop = eventLoopYielder(SLICE_MS)
  for (const [index, { scope, rule }] of applied.entries()) {
    await yieldToEventLoop()
    const { context, source, failed } = contexts[index]
    const facts: Facts = { args, context, runtime }
    evaluations.push({
      kind: 'guardrail_evaluation',
      guardrail_id: rule.guardrail_id,
      guardrail_version: rule.version,
      scope,
      tool: tool?.name ?? null,
      action,
      ...(await classifyText(services, rule, facts, failed)),
      context_source: source,
      context_snapshot: snapshotOf(rule, facts, keepsContent),
      agent_id: agent?.id ?? null,
      orchestration_run_id: run?.orchestration_run_id ?? null,
      generation_id,
    })
  }
  return evaluations
}

/** Returns the index of the first evaluation with the strictest decision, which governs. */
function strictestIndex(evaluations: readonly Evaluation[]): number {
  const strictness = evaluations.map(({ decision }) => STRICTNESS.indexOf(decision))
  return strictness.indexOf(Math.max(...strictness))
}

const versionOf = ({ guardrail_id, version }: GuardrailRule): string => `${guardrail_id}@${version ?? 'none'}`

/** Returns the arguments that all rules show to an end user. */
const sharedArguments = (documents: readonly GuardrailDocument[]): string[] =>
  (documents[0].end_user_arguments ?? []).filter(name =>
    documents.every(({ end_user_arguments }) => end_user_arguments?.includes(name)),
  )

async function evaluateGate(services: Services, request: GateRequest): Promise<Verdict> {
  const applied = await rulesFor(services, request)
  if (applied.length === 0) return { decision: 'execute' }
  const { keepsContent } = await guardrailCache(services).projects.get(request.project_id)
  const evaluations = await evaluateRules(services, applied, { ...request, keepsContent })
  const governing = strictestIndex(evaluations)
  const { decision } = evaluations[governing]
  const { rule } = applied[governing]
  storeEvaluations(services, request, evaluations, decision)
  if (decision === 'execute') return { decision }
  if (decision === 'route_to_approval') {
    const requiring = applied
      .filter((_, index) => evaluations[index].decision === decision)
      .map(({ rule }) => rule.document)
    return {
      decision,
      policy_version: versionOf(rule),
      expires_in: rule.document.expires_in ?? APPROVAL_SECONDS,
      // The strictest of the rules that require the approval.
      forbid_self_approval: requiring.some(each => each.forbid_self_approval === true),
      approver: requiring.every(each => each.approver === 'end_user') ? 'end_user' : 'operator',
      end_user_arguments: sharedArguments(requiring),
    }
  }
  if (decision === 'tripwire') await reportTripwire(services, request, rule)
  const what = decision === 'blocked' ? 'blocked the call' : 'stopped the call because its guard failed'
  return { decision, reason: `Guardrail ${rule.name} (${versionOf(rule)}) ${what}` }
}

function storeEvaluations(
  services: Services,
  { project_id, tool, action, args, generation_id, run }: GateRequest,
  evaluations: readonly Evaluation[],
  decision: GuardrailDecision,
): void {
  const drafts = evaluations.map(evaluation => ({
    ...evaluation,
    id: newId(evaluationKind.prefix),
    project_id,
    tool_id: tool.id,
    approval_id: null,
  }))
  const subject_id = generation_id ?? (run && nodeSubject(run))
  if (decision !== 'route_to_approval' || subject_id === null) recordEvaluations(services, drafts)
  else deferEvaluations(services, { subject_id, tool: tool.id ?? tool.name, action, args }, drafts)
}

/**
 * Reports a call stopped by a guard, as an exception and an event. Failures are only logged: the call is stopped in any
 * case.
 */
async function reportTripwire(services: Services, request: GateRequest, rule: GuardrailRule): Promise<void> {
  const { project_id, tool, action, agent, run, generation_id } = request
  const { orchestration_run_id = null, node_id = null } = run ?? {}
  const guardrail_version = versionOf(rule)
  const called = { tool_id: tool.id, tool_name: tool.name, action, guardrail_version, generation_id }
  fileExceptionLater(services, {
    project_id,
    kind: 'guardrail_tripwire',
    title: `Guardrail stopped a call of ${tool.name}`,
    detail: called,
    dedup_key: `${agent?.id ?? ''}:${tool.id ?? tool.name}:${guardrail_version}`,
    orchestration_run_id,
    node_id,
    agent_id: agent?.id ?? null,
    guardrail_version,
  })
  const { row } = rule
  if (!row) return
  const extra = { ...called, agent_id: agent?.id ?? null, orchestration_run_id, node_id }
  try {
    await services.write(async tx => tx.emit(guardrailKind, 'tripwire', row, { extra }))
  } catch (error) {
    services.log.error({ err: error, project_id, guardrail_version }, 'tripwire event not written')
  }
}

/** Guardrails of projects, agents and tools as the gate of tool calls. */
export const guardrailGate: ToolGate = {
  judge: evaluateGate,
  warnings: warningsFor,
  async mayAsk(services, { project_id, agent, tools }) {
    return Promise.all(
      tools.map(async tool =>
        (await rulesFor(services, { project_id, agent, tool })).some(({ rule }) => mayRequireApproval(rule)),
      ),
    )
  },
}
