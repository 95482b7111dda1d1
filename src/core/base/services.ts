import type { Clock } from './clock.ts'
import type { Config } from './config.ts'
import type { Logger } from './log.ts'

/** State of processSingleton by its key, closed with the services. */
export type ProcessState = Map<object, { value: unknown; close?: () => Promise<void> | void }>

/**
 * The services available to all modules, one instance per process. Each part of `core` that provides one adds it to this
 * interface where it is made; services-lifecycle.ts opens all.
 */
export interface Services {
  config: Config
  clock: Clock
  log: Logger
  /** State of processSingleton. */
  state: ProcessState
  /** The first cell, in the services of another one. */
  home?: Services
}
