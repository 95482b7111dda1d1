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

/** State of processSingleton by its key, closed with the services. */
export type ProcessState = Map<object, { value: unknown; close?: () => Promise<void> | void }>

/** The services available to all modules, one instance per process. */
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
  /** State of processSingleton. */
  state: ProcessState
}
