import { notifyManager } from '@tanstack/react-query'
import { useEffect, useState } from 'react'

/** Time for which a hidden tab keeps its stream. */
const HIDDEN_MS = 60_000
/** Pause before a lost stream is opened again. */
const REOPEN_MS = 5000

/** Whether the tab has been hidden since it was opened, or long enough that its stream ends. */
function useHidden(): boolean {
  const [isHidden, setHidden] = useState(document.hidden)
  useEffect(() => {
    let timer: ReturnType<typeof setTimeout> | undefined
    const note = () => {
      clearTimeout(timer)
      if (document.hidden) timer = setTimeout(() => setHidden(true), HIDDEN_MS)
      else setHidden(false)
    }
    document.addEventListener('visibilitychange', note)
    return () => {
      clearTimeout(timer)
      document.removeEventListener('visibilitychange', note)
    }
  }, [])
  return isHidden
}

/**
 * Calls `start` while the tab is visible; its signal is aborted after the tab is hidden, unless `isKept`, and when `id` changes.
 * `start` may depend on `id` only.
 */
export function useWhileVisible(
  id: string | undefined,
  start: (id: string, signal: AbortSignal) => void,
  enabled = true,
  isKept = false,
): void {
  const isHidden = useHidden()
  const isOn = enabled && (isKept || !isHidden)
  useEffect(() => {
    if (!isOn || id === undefined) return
    const controller = new AbortController()
    start(id, controller.signal)
    return () => controller.abort()
  }, [id, isOn])
}

/** Waits, at most until the signal is aborted. */
export const pause = (ms: number, signal: AbortSignal): Promise<void> =>
  new Promise(resolve => {
    const end = () => {
      clearTimeout(timer)
      signal.removeEventListener('abort', end)
      resolve()
    }
    const timer = setTimeout(end, ms)
    signal.addEventListener('abort', end)
  })

/** Reads a stream until the signal is aborted, and opens it again after it is lost. */
export async function readStream<Event>(
  signal: AbortSignal,
  {
    open,
    onEvent,
    onLost,
    reopenMs = REOPEN_MS,
  }: {
    open: (signal: AbortSignal) => AsyncIterable<Event>
    onEvent: (event: Event) => void
    /** Reads what the stream does not bring any more, and with it the reason. */
    onLost: () => void
    reopenMs?: number
  },
): Promise<void> {
  for (;;) {
    try {
      for await (const event of open(signal)) onEvent(event)
    } catch {}
    if (signal.aborted) return
    onLost()
    await pause(reopenMs * (1 + Math.random() * 0.2), signal)
    if (signal.aborted) return
  }
}

/**
 * Reads the stream of a record while its view is visible. Returns whether it is live. `open`, `apply` and `onLost` may
 * depend on `id` only: `apply` writes each event into the query cache, `onLost` makes the record stale.
 */
export function useStream<Event>(
  id: string,
  {
    open,
    apply,
    onLost,
    enabled,
  }: {
    open: (signal: AbortSignal) => AsyncIterable<Event>
    apply: (event: Event) => void
    onLost: () => void
    enabled?: boolean
  },
): boolean {
  const [isLive, setLive] = useState(false)
  const start = (_id: string, signal: AbortSignal) => {
    let arrived: Event[] = []
    let frame = 0
    // What arrives is drawn once a frame.
    const draw = () => {
      cancelAnimationFrame(frame)
      frame = 0
      const events = arrived
      arrived = []
      notifyManager.batch(() => events.forEach(apply))
    }
    void readStream(signal, {
      open,
      onEvent: event => {
        setLive(true)
        arrived.push(event)
        frame ||= requestAnimationFrame(draw)
      },
      onLost: () => {
        draw()
        setLive(false)
        onLost()
      },
    })
  }
  useWhileVisible(id, start, enabled)
  return isLive
}
