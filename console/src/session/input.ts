/** Input of the user in any tab of this browser. */

const EVENTS = ['pointerdown', 'keydown', 'scroll'] as const
/** Smallest time between two messages about input to the other tabs. */
const SHARE_MS = 20_000

let last: number | undefined

/** Seconds since the last input in any tab; 0 before a tab has watched it. */
export const idleSeconds = (): number => (last === undefined ? 0 : Math.max(0, Math.round((Date.now() - last) / 1000)))

/** Watches input, and calls a function after input in this tab, until the returned function is called. */
export function watchInput(onInput: () => void): () => void {
  const channel = new BroadcastChannel('muster-input')
  last = Date.now()
  let shared = 0
  const note = () => {
    last = Date.now()
    onInput()
    if (last - shared < SHARE_MS) return
    shared = last
    channel.postMessage(null)
  }
  channel.onmessage = () => {
    last = Date.now()
  }
  for (const name of EVENTS) addEventListener(name, note, { passive: true, capture: true })
  return () => {
    channel.close()
    for (const name of EVENTS) removeEventListener(name, note, { capture: true })
  }
}
