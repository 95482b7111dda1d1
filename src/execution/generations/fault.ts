import { setTimeout as sleep } from 'node:timers/promises'
import type { Services } from '../../core/operation.ts'

const POINTS = ['after_claim', 'before_model', 'after_model', 'before_settle', 'after_settle'] as const
export type FaultPoint = (typeof POINTS)[number]

/**
 * Where tests break an executor: FAULT_POINTS=`point=kill` ends the process as a crash would, `point=freeze:<ms>`
 * holds it. Unset, it costs one comparison; production refuses to boot with it.
 */
export async function fault(services: Services, point: FaultPoint): Promise<void> {
  const { FAULT_POINTS } = services.config
  if (!FAULT_POINTS) return
  for (const rule of FAULT_POINTS.split(',')) {
    const [name, what] = rule.trim().split('=')
    if (name !== point) continue
    if (what === 'kill') process.kill(process.pid, 'SIGKILL')
    else if (what?.startsWith('freeze:')) await sleep(Number(what.slice(7)))
  }
}
