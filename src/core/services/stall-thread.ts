import { writeSync } from 'node:fs'
import { type Profiler, Session } from 'node:inspector/promises'
import { setTimeout as sleep } from 'node:timers/promises'
import { parentPort, workerData } from 'node:worker_threads'
import { CURRENT_WORK, type CurrentWork, STALL_MS, type Stall } from './stall-model.ts'

/**
 * Program of the watchdog thread. When the main thread has not reported for a second, it connects as a debugger, which V8
 * serves in the middle of JavaScript and regular expressions, and takes a short profile. The line for a stall that still
 * lasts is written by the thread itself, because the main thread may never log again.
 */
const { beats, bindings } = workerData as { beats: Int32Array; bindings: Record<string, unknown> }

const CHECK_MS = 250
const PROFILE_MS = 200
/** A busy machine may run nothing of the main thread during a profile. */
const MAX_PROFILES = 5
const SAMPLE_US = 5000
const MAX_FRAMES = 20

/** A stall is logged while it lasts when it is this long. */
const LASTING_MS = 10_000

const UNKNOWN: CurrentWork & { stack: readonly string[] } = { work: null, project_id: null, stack: [] }

async function inspect(): Promise<typeof UNKNOWN> {
  const session = new Session()
  try {
    session.connectToMainThread()
    const evaluated = session.post('Runtime.evaluate', { expression: `globalThis.${CURRENT_WORK}()` })
    await session.post('Profiler.enable')
    await session.post('Profiler.setSamplingInterval', { interval: SAMPLE_US })
    let profile = await takeProfile(session)
    for (let taken = 1; taken < MAX_PROFILES && !profile.nodes.some(isOfScript); taken++)
      profile = await takeProfile(session)
    const current: CurrentWork = JSON.parse((await evaluated).result.value)
    return { ...UNKNOWN, ...current, stack: hottestStack(profile) }
  } catch {
    return UNKNOWN
  } finally {
    session.disconnect()
  }
}

async function takeProfile(session: Session): Promise<Profiler.Profile> {
  await session.post('Profiler.start')
  await sleep(PROFILE_MS)
  const { profile } = await session.post('Profiler.stop')
  return profile
}

/** Whether a node is a function of a script, not a part of the engine such as its garbage collector. */
const isOfScript = ({ callFrame }: Profiler.ProfileNode): boolean => callFrame.url !== ''

/** Returns the stack with the most samples, innermost function first; one of a script if there is any. */
function hottestStack({ nodes, samples = [] }: Profiler.Profile): string[] {
  const counts = new Map<number, number>()
  for (const id of samples) counts.set(id, (counts.get(id) ?? 0) + 1)
  const byId = new Map(nodes.map(node => [node.id, node]))
  const parents = new Map(nodes.flatMap(({ id, children = [] }) => children.map(child => [child, id] as const)))
  const rank = (id: number) => (counts.get(id) ?? 0) + (isOfScript(byId.get(id)!) ? samples.length : 0)
  const [hottest] = [...counts.keys()].sort((a, b) => rank(b) - rank(a))
  const stack: string[] = []
  for (let id: number | undefined = hottest; id !== undefined && stack.length < MAX_FRAMES; id = parents.get(id)) {
    const { functionName, url, lineNumber } = byId.get(id)!.callFrame
    stack.push(
      `${functionName || '(anonymous)'} ${url.replace(/^.*\/(src|jobs|node_modules)\//, '$1/')}:${lineNumber + 1}`,
    )
  }
  return stack
}

// An inspector session does not keep the thread alive while it waits for the main thread.
setInterval(() => {}, 60_000)

let last = Atomics.load(beats, 0)
let since = performance.now()
for (;;) {
  await sleep(CHECK_MS)
  const beat = Atomics.load(beats, 0)
  const silentMs = performance.now() - since
  if (beat !== last) {
    last = beat
    since = performance.now()
  } else if (silentMs > STALL_MS) await onStall()
}

async function onStall(): Promise<void> {
  const found = await inspect()
  let isLogged = false
  while (Atomics.load(beats, 0) === last) {
    const ms = performance.now() - since
    if (!isLogged && ms > LASTING_MS) {
      const line = { level: 'error', time: new Date().toISOString(), ...bindings, stall_ms: Math.round(ms), ...found }
      try {
        writeSync(1, `${JSON.stringify({ ...line, msg: 'event loop is stalled' })}\n`)
      } catch {
        // A full pipe must not end the watchdog.
      }
      isLogged = true
    }
    await sleep(CHECK_MS)
  }
  const stall: Stall = { ...found, ms: performance.now() - since }
  parentPort?.postMessage(stall)
}
