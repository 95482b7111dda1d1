import { AppError } from '../../../core/api/errors.ts'
import { truthy } from '../../../core/expressions/evaluate.ts'
import { callTool as call } from '../../../execution/tools/call.ts'
import { parseDuration } from '../../orchestrations/duration.ts'
import type { Attempt, NodeAttemptOutcome } from '../engine/node-execution.ts'
import { evaluateValue, mapState } from '../engine/run-state.ts'
import { longWorkState } from '../model.ts'
import { findState } from '../store.ts'
import { evaluateGuardrails, openNodeCall, toolOf } from './tool.ts'

const MAX_ITERATIONS = 10

/** A poll node calls its tool until its condition holds; between the calls nothing is held. */
export async function pollNode(attempt: Attempt): Promise<NodeAttemptOutcome> {
  const { services, node, taken } = attempt
  const run = await findState(services.pool, taken.run_id)
  if (!run) throw new AppError('ORCHESTRATION_RUN_NOT_FOUND', { meta: { id: taken.run_id } })
  const state = longWorkState(run)
  const number = taken.polls + 1
  const tool = await toolOf(attempt)
  const opened = openNodeCall(attempt, mapState(node, 'input_mapping', node.input_mapping, state))
  const { verdict } = await evaluateGuardrails(attempt, tool, opened)
  if (verdict && verdict.decision !== 'execute')
    throw new AppError('TOOL_DISPATCH_FAILED', {
      message: 'reason' in verdict ? verdict.reason : 'The call needs an approval, which cannot be given here',
      meta: { tool_id: tool.id, outcome: verdict.decision },
    })
  const response = (await call(services, tool, { ...opened, judged: true })) ?? null
  const holds = truthy(
    evaluateValue(node, 'exit_condition', node.exit_condition, { ...state, response, attempt: number }),
  )
  const most = node.max_iterations ?? MAX_ITERATIONS
  if (!holds && number < most) return { again: { ms: parseDuration(node.interval as string) ?? 0 } }
  if (!holds && node.fail_on_timeout)
    throw new AppError('ORCHESTRATION_POLL_EXHAUSTED', { meta: { node_id: node.id, attempts: number } })
  return {
    artifact: { result: response, attempts: number, condition_met: holds, timed_out: !holds },
    called: { tool_id: tool.id, tool_name: tool.name, action: node.operation_id ?? tool.name },
  }
}
