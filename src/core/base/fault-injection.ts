import { setTimeout as sleep } from 'node:timers/promises'
import type { Services } from './services.ts'

/**
 * Points at which tests can inject a fault. The engine has three for each kind of work: after the claim, and before and
 * after the commit of the last transaction of an attempt.
 */
export type FaultPoint =
  | `${string}/${'claimed' | 'ending' | 'ended'}`
  | 'message_started'
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
  | 'ingestion_read'
  | 'ingestion_batch'
  | 'ingestion_written'
  | 'approval_executing'
  | 'approval_called'
  | 'approval_executed'
  | 'decision_answered'
  | 'delivery_sending'
  | 'exception_filed'
  | 'content_expired'
  | 'traces_expired'
  | 'conversations_expired'
  | 'runs_expired'
  | 'content_erased'
  | 'knowledge_kept'
  | 'firing_answered'
  | 'firing_facts'
  | 'firing_fact_written'
  | 'chat_answered'
  | 'summary_answered'
  | 'title_answered'
  | 'run_locked'
  | 'run_advanced'
  | 'run_committed'
  | 'node_taken'
  | 'node_called'
  | 'node_finished'
  | 'child_started'
  | 'run_followed'
  | 'trigger_accepted'
  | 'trigger_starting'
  | 'trigger_started'
  | 'trigger_called'
  | 'eval_run_settling'
  | 'formation_claimed'
  | 'formation_called'
  | 'formation_step'
  | 'formation_applied'
  | 'task_called'
  | 'task_starting'
  | 'task_settling'
  | 'event_judged'
  | 'event_taken'
  | 'event_answered'
  | 'export_staged'
  | 'local_turn'
  | 'request_carried_out'
  | 'move_recorded'
  | 'move_copying'
  | 'move_paused'
  | 'move_fenced'
  | 'move_replayed'
  | 'move_completed'
  | 'move_copied'
  | 'move_taking'
  | 'move_staged'
  | 'move_taken'
  | 'move_placed'

/**
 * Injects a fault for tests: FAULT_POINTS=`point=kill` ends the process like a crash, `point=kill:<n>` when the point
 * is reached for the nth time, `point=freeze:<ms>` logs the point and suspends what reached it, `point=stall:<ms>` blocks
 * the process. `@<text>` after a fault restricts it to details that contain the text. Costs one comparison if unset;
 * refused in production.
 * @param detail what reached the point
 */
export async function injectFault(
  { config, log }: Pick<Services, 'config' | 'log'>,
  point: FaultPoint,
  detail?: () => string,
): Promise<void> {
  const { FAULT_POINTS } = config
  if (!FAULT_POINTS) return
  for (const rule of FAULT_POINTS.split(',')) {
    const [name, effect] = rule.trim().split('=')
    if (name !== point) continue
    const [fault, text] = effect.split('@')
    if (text !== undefined && !detail?.().includes(text)) continue
    if (fault === 'kill' || (fault.startsWith('kill:') && countReached(point) === Number(fault.slice(5))))
      process.kill(process.pid, 'SIGKILL')
    else if (fault.startsWith('stall:')) blockProcess(Number(fault.slice(6)))
    else if (fault.startsWith('freeze:')) {
      log.info({ point }, 'fault injected')
      await sleep(Number(fault.slice(7)))
    }
  }
}

/** Formats whose version tests can raise. */
type RaisedFormat = 'turn_data' | 'turn_journal' | 'run_context'

/** Returns the version of a format; FAULT_POINTS=`<format>=version:<n>` raises it, as a later release would. */
export function injectedVersion({ config }: Pick<Services, 'config'>, format: RaisedFormat, version: number): number {
  const { FAULT_POINTS } = config
  if (!FAULT_POINTS) return version
  const start = `${format}=version:`
  const rule = FAULT_POINTS.split(',').find(each => each.trim().startsWith(start))
  return rule ? Number(rule.trim().slice(start.length)) : version
}

function blockProcess(ms: number): void {
  for (const until = performance.now() + ms; performance.now() < until; );
}

const reachedCounts = new Map<FaultPoint, number>()

/** Counts a reached point and returns the count. */
function countReached(point: FaultPoint): number {
  const count = (reachedCounts.get(point) ?? 0) + 1
  reachedCounts.set(point, count)
  return count
}
