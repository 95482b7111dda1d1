import type { Config } from '../../config.ts'
import type { Notifier } from '../db/notifier.ts'
import type { Notifications } from '../db/notify.ts'
import type { Pool } from '../db/pool.ts'
import type { Writer } from '../db/writer.ts'
import type { Queues } from '../jobs/queue.ts'
import type { Egress } from '../net/egress.ts'
import type { SecretBox } from '../secrets/secretbox.ts'
import type { Clock } from './clock.ts'
import type { Logger } from './log.ts'

/** What modules keep for a process, by who asked for it. Lives and ends with the services of the process. */
export type ProcessState = Map<object, { value: unknown; close?: () => Promise<void> | void }>

/** What every module may use. One per process. */
export type Services = Writer & {
  config: Config
  clock: Clock
  log: Logger
  pool: Pool
  queues: Queues
  notifications: Notifications
  notifier: Notifier
  secrets: SecretBox
  egress: Egress
  /** What modules keep for this process (perProcess). */
  state: ProcessState
}
