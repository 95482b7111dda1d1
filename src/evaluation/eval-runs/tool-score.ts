import type { UsageDraft } from '../../control/usage/meter.ts'
import { raise } from '../../core/api/errors.ts'
import { isObject } from '../../core/expressions/evaluate.ts'
import type { Services } from '../../core/process/services.ts'
import { callTool, openCall } from '../../execution/tools/call.ts'
import { toolKind } from '../../execution/tools/model.ts'
import { callerForPrincipal } from '../../identity/principals.ts'
import type { ScorerOf } from '../evals/scorers.ts'
import { evalToolContext } from './context.ts'
import type { OpenItem, Score } from './model.ts'
import { factsOf, parseFirstObject, reasoningOf, requireScore, scoreOf, unscoredResult } from './score.ts'

/**
 * Has a tool score an answer, in the name of who started the run and within the guardrails.
 * @param key what the use is recorded under
 * @throws TOOL_NOT_FOUND, EVAL_SCORING_FAILED for what is no verdict, what a call fails with
 */
export async function scoreByTool(
  services: Services,
  scorer: ScorerOf<'tool'>,
  item: OpenItem,
  { key, use, signal }: { key: string; use: (draft: UsageDraft) => void; signal: AbortSignal },
): Promise<Score> {
  const { project_id, run } = item
  const tool = await toolKind.find(services.pool, scorer.tool_id)
  if (tool?.project_id !== project_id) return raise('TOOL_NOT_FOUND', { meta: { id: scorer.tool_id } })
  const call = openCall(services, {
    action: scorer.action,
    input: { ...scorer.preset_parameters, ...factsOf(item) },
    caller: () => callerForPrincipal(services, run.authority, project_id),
    context: evalToolContext(services, run) ?? undefined,
    // The same for a call that is made again after its worker was lost.
    idempotencyKey: `${item.id}:${scorer.name}`,
    metering: {
      source: 'evaluation',
      record: key,
      agent_id: run.agent_id,
      generation_id: item.generation_id,
      trigger_id: run.trigger_id,
      add: use,
    },
    signal,
  })
  const answered = await callTool(services, tool, call)
  const said = typeof answered === 'string' ? parseFirstObject(answered) : answered
  if (!isObject(said)) throw unscoredResult('The tool must answer an object with a score')
  const score = requireScore(said.score)
  const { pass_threshold } = scorer
  if (said.passed !== undefined && typeof said.passed !== 'boolean')
    throw unscoredResult('passed must be true or false')
  const passed = said.passed ?? (pass_threshold === undefined ? null : score >= pass_threshold)
  if (passed === null)
    throw unscoredResult('The tool does not say whether that is enough, and the scorer has no pass_threshold')
  return scoreOf(scorer, score, passed as boolean, reasoningOf(said.reasoning, item))
}
