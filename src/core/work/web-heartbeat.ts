import { setTimeout as sleep } from 'node:timers/promises'
import { settledWithin } from '../base/event-loop.ts'
import { HOLDER, instanceId, ownIdentity } from '../base/holder.ts'
import type { Services } from '../base/services.ts'
import { Heartbeat } from './takeover.ts'

const END_MS = 1000

/** Heartbeats of a web process: whether other processes have received one recently, and the function that ends them. */
export type WebHeartbeat = { isRecent(): boolean; end(): Promise<void> }

/** Starts the heartbeats of a web process, which correct its clock by the database before it serves requests. */
export async function startWebHeartbeat(services: Services): Promise<WebHeartbeat> {
  const { config, log } = services
  const heartbeat = new Heartbeat(services, {
    instance: instanceId(config, 'web'),
    kinds: [],
    holder: config.WEB_EXECUTES ? HOLDER : null,
    identity: ownIdentity(),
  })
  const beat = () => heartbeat.beat().catch(error => log.debug({ err: error }, 'heartbeat failed'))
  await beat()
  const stopping = new AbortController()
  const ended = (async () => {
    // One after the other: a heartbeat waits while the database is silent.
    while (await pause(config.WORKER_HEARTBEAT_INTERVAL_MS, stopping.signal)) await beat()
  })()
  const end = async () => {
    stopping.abort()
    const deleted = ended.then(() => heartbeat.end())
    // A stop does not wait for a database that is silent: heartbeats without an end are pruned.
    await settledWithin(END_MS, deleted).catch(error => log.debug({ err: error }, 'heartbeat not deleted'))
  }
  return { isRecent: () => heartbeat.isRecent, end }
}

/** Waits. Returns false if the signal ends the wait. */
const pause = (ms: number, signal: AbortSignal): Promise<boolean> =>
  sleep(ms, true, { signal, ref: false }).catch(() => false)
