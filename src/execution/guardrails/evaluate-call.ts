import { fileExceptionLater } from '../../control/exceptions/file-exception.ts'
import { newId } from '../../core/api/ids.ts'
import { eventLoopYielder } from '../../core/process/event-loop.ts'
import type { Services } from '../../core/process/services.ts'
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
  type GuardrailScope,
  guardrailKind,
} from './model.ts'
import { type RuntimeSubject, runtimeOf } from './runtime.ts'
import { warningsFor } from './warnings.ts'

/** From the mildest to the strictest. */
const STRICTNESS: readonly GuardrailDecision[] = ['execute', 'route_to_approval', 'tripwire', 'blocked']

/** Milliseconds that the rules of a call hold the event loop at a time. */
const SLICE_MS = 5

type Applied = { scope: GuardrailScope; rule: GuardrailRule }
type Attached = Pick<GateRequest, 'project_id' | 'agent'> & { tool: Pick<GateRequest['tool'], 'guardrail_ids'> }

/** What is judged: a call, or one that is only tried. */
export type EvaluatedCall = RuntimeSubject &
  Pick<GateRequest, 'args' | 'guardrail_context' | 'caller' | 'generation_id'> & { keepsContent: boolean }

/** The rules that apply to a call: those of the project, of the agent, of the tool, each in its order. */
async function rulesFor(services: Services, { project_id, agent, tool }: Attached): Promise<Applied[]> {
  const { projects, rules } = guardrailCache(services)
  const { guardrail_ids } = await projects.get(project_id)
  const ids: Record<GuardrailScope, readonly string[] | null | undefined> = {
    project: guardrail_ids,
    agent: agent?.guardrail_ids,
    tool: tool.guardrail_ids,
  }
  const attached = GUARDRAIL_SCOPES.flatMap(scope => (ids[scope] ?? []).map(id => ({ scope, id })))
  const known = await Promise.all(attached.map(({ id }) => rules.get(id)))
  return attached.map(({ scope, id }, index) => {
    const { rule } = known[index]
    return { scope, rule: rule?.project_id === project_id ? rule : missingGuardrailRule(id, project_id) }
  })
}

/** What each rule says of a call, in their order. */
export async function evaluateRules(
  services: Services,
  applied: readonly Applied[],
  judged: EvaluatedCall,
): Promise<Evaluation[]> {
  const { args, tool, action, agent, run, generation_id, keepsContent } = judged
  const runtime = await runtimeOf(services, judged, new Set(applied.flatMap(({ rule }) => rule.paths)))
  const contexts = await Promise.all(applied.map(({ rule }) => guardrailContext(services, rule, judged)))
  const evaluations: Evaluation[] = []
  const breathe = eventLoopYielder(SLICE_MS)
  for (const [index, { scope, rule }] of applied.entries()) {
    await breathe()
    const { context, source, failed } = contexts[index]
    const facts: Facts = { args, context, runtime }
    evaluations.push({
      kind: 'guardrail_evaluation',
      guardrail_id: rule.guardrail_id,
      guardrail_version: rule.version,
      scope,
      tool: tool?.name ?? null,
      action,
      ...classifyText(rule, facts, failed),
      context_source: source,
      context_snapshot: snapshotOf(rule, facts, keepsContent),
      agent_id: agent?.id ?? null,
      orchestration_run_id: run?.orchestration_run_id ?? null,
      generation_id,
    })
  }
  return evaluations
}

/** The strictest decision, and the first that made it: it governs. */
function governing(evaluations: readonly Evaluation[]): number {
  const strictness = evaluations.map(({ decision }) => STRICTNESS.indexOf(decision))
  return strictness.indexOf(Math.max(...strictness))
}

const versionOf = ({ guardrail_id, version }: GuardrailRule): string => `${guardrail_id}@${version ?? 'none'}`

async function judge(services: Services, request: GateRequest): Promise<Verdict> {
  const applied = await rulesFor(services, request)
  if (applied.length === 0) return { decision: 'execute' }
  const { keepsContent } = await guardrailCache(services).projects.get(request.project_id)
  const evaluations = await evaluateRules(services, applied, { ...request, keepsContent })
  const at = governing(evaluations)
  const { decision } = evaluations[at]
  const { rule } = applied[at]
  keep(services, request, evaluations, decision)
  if (decision === 'execute') return { decision }
  if (decision === 'route_to_approval')
    return {
      decision,
      policy_version: versionOf(rule),
      expires_in: rule.document.expires_in ?? APPROVAL_SECONDS,
      // Any of those who ask a person may ask for another one.
      forbid_self_approval: applied.some(
        (each, index) => evaluations[index].decision === decision && each.rule.document.forbid_self_approval === true,
      ),
    }
  if (decision === 'tripwire') await trip(services, request, rule)
  const what = decision === 'blocked' ? 'forbids the call' : 'stopped the call: its guard does not hold'
  return { decision, reason: `The guardrail ${rule.name} (${versionOf(rule)}) ${what}` }
}

function keep(
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
  const asked_by = generation_id ?? (run && nodeSubject(run))
  if (decision !== 'route_to_approval' || asked_by === null) recordEvaluations(services, drafts)
  else deferEvaluations(services, { asked_by, tool: tool.id ?? tool.name, action, args }, drafts)
}

/** Tells that a guard stopped a call. What fails here is logged: the call does not happen in any case. */
async function trip(services: Services, request: GateRequest, rule: GuardrailRule): Promise<void> {
  const { project_id, tool, action, agent, run, generation_id } = request
  const { orchestration_run_id = null, node_id = null } = run ?? {}
  const guardrail_version = versionOf(rule)
  const called = { tool_id: tool.id, tool_name: tool.name, action, guardrail_version, generation_id }
  fileExceptionLater(services, {
    project_id,
    kind: 'guardrail_tripwire',
    title: `A guardrail stopped a call of ${tool.name}`,
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
    services.log.error({ err: error, project_id, guardrail_version }, 'event of a tripwire not written')
  }
}

/** The guardrails of projects, agents and tools, as calls of tools ask them. */
export const guardrailGate: ToolGate = {
  judge,
  warnings: warningsFor,
  async mayAsk(services, { project_id, agent, tools }) {
    return Promise.all(
      tools.map(async tool =>
        (await rulesFor(services, { project_id, agent, tool })).some(({ rule }) => mayRequireApproval(rule)),
      ),
    )
  },
}
