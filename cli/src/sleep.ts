import { setTimeout as wait } from 'node:timers/promises'
import { interruption } from './interrupt.ts'

/** Waits, and rejects once the process is interrupted. */
export const sleep = (ms: number): Promise<void> => wait(ms, undefined, { signal: interruption })
