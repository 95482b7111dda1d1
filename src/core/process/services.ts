import type { Config } from '../../config.ts'
import type { Notifications } from '../db/notify.ts'
import type { Pool } from '../db/pool.ts'
import type { Writer } from '../db/write.ts'
import type { Queues } from '../jobs/queue.ts'
import type { Egress } from '../net/egress.ts'
import type { SecretBox } from '../secrets/secretbox.ts'
import type { Clock } from './clock.ts'
import type { Logger } from './log.ts'

/** What every module may use. One per process. */
export type Services = Writer & {
  config: Config
  clock: Clock
  log: Logger
  pool: Pool
  queues: Queues
  notifications: Notifications
  secrets: SecretBox
  egress: Egress
}
