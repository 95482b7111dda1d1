import { setTimeout as sleep } from 'node:timers/promises'
import type { Services } from './services.ts'

/**
 * Of a turn, of the file of its trace, of an ingestion, of what follows from an approval, of a decision that a tool makes, of
 * filing an exception, of erasing content and deleting records, of what a turn knows, of the firing of a memory rule, of the reply of a
 * chat, of an advance of a run and of an attempt of a node, of the firing of a trigger, of an item of an eval and the end of its run,
 * of an event that executions wait for, of an export, of an operation of a formation; of a request whose operation was carried out.
 */
type FaultPoint =
  | 'turn_taken'
  | 'after_claim'
  | 'before_model'
  | 'after_model'
  | 'before_tool'
  | 'after_tool'
  | 'before_settle'
  | 'after_settle'
  | 'trace_staged'
  | 'trace_written'
  | 'ingestion_claimed'
  | 'ingestion_read'
  | 'ingestion_batch'
  | 'ingestion_written'
  | 'ingestion_settled'
  | 'approval_executing'
  | 'approval_called'
  | 'approval_executed'
  | 'decision_claimed'
  | 'decision_answered'
  | 'exception_filed'
  | 'content_expired'
  | 'traces_expired'
  | 'conversations_expired'
  | 'content_erased'
  | 'knowledge_kept'
  | 'firing_claimed'
  | 'firing_answered'
  | 'firing_facts'
  | 'firing_fact_written'
  | 'chat_answered'
  | 'run_locked'
  | 'run_advanced'
  | 'run_committed'
  | 'node_taken'
  | 'node_called'
  | 'node_finished'
  | 'child_started'
  | 'run_followed'
  | 'trigger_accepted'
  | 'trigger_claimed'
  | 'trigger_started'
  | 'trigger_called'
  | 'eval_item_asking'
  | 'eval_item_asked'
  | 'eval_item_answered'
  | 'eval_item_scored'
  | 'eval_run_settling'
  | 'formation_claimed'
  | 'formation_called'
  | 'formation_step'
  | 'formation_applied'
  | 'task_claimed'
  | 'task_called'
  | 'task_settled'
  | 'task_starting'
  | 'task_started'
  | 'task_looked'
  | 'event_judged'
  | 'event_taken'
  | 'event_answered'
  | 'export_claimed'
  | 'export_staged'
  | 'export_completed'
  | 'request_carried_out'

/**
 * Where tests break an executor: FAULT_POINTS=`point=kill` ends the process as a crash would, `point=kill:<n>` when it is
 * reached for the nth time, `point=freeze:<ms>` holds it. Unset, it costs one comparison; production refuses to boot with it.
 */
export async function injectFault({ config }: Pick<Services, 'config'>, point: FaultPoint): Promise<void> {
  const { FAULT_POINTS } = config
  if (!FAULT_POINTS) return
  for (const rule of FAULT_POINTS.split(',')) {
    const [name, what] = rule.trim().split('=')
    if (name !== point) continue
    if (what === 'kill' || (what?.startsWith('kill:') && reachedAgain(point) === Number(what.slice(5))))
      process.kill(process.pid, 'SIGKILL')
    else if (what?.startsWith('freeze:')) await sleep(Number(what.slice(7)))
  }
}

const reached = new Map<FaultPoint, number>()

/** Counts how often a point was reached. */
function reachedAgain(point: FaultPoint): number {
  const count = (reached.get(point) ?? 0) + 1
  reached.set(point, count)
  return count
}
