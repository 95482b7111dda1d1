import { useEffect } from 'react'
import { signOut } from './tokens.ts'

const INPUTS = ['pointerdown', 'keydown', 'scroll'] as const
/** Smallest time between two messages about input to the other tabs. */
const SHARE_MS = 20_000

/** Signs out after minutes without input in any tab; 0 never. */
export function useIdleSignOut(minutes: number): void {
  useEffect(() => {
    if (minutes === 0) return
    const channel = new BroadcastChannel('muster-input')
    let last = Date.now()
    let shared = 0
    const note = () => {
      last = Date.now()
      if (last - shared < SHARE_MS) return
      shared = last
      channel.postMessage(null)
    }
    channel.onmessage = () => {
      last = Date.now()
    }
    for (const name of INPUTS) addEventListener(name, note, { passive: true, capture: true })
    const timer = setInterval(() => {
      if (Date.now() - last > minutes * 60_000) void signOut('idle')
    }, 5000)
    return () => {
      clearInterval(timer)
      channel.close()
      for (const name of INPUTS) removeEventListener(name, note, { capture: true })
    }
  }, [minutes])
}
