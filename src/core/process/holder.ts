import { randomUUID } from 'node:crypto'
import { readFileSync, readlinkSync } from 'node:fs'

/** Names this process in the leases that it takes; no other process ever has the name. */
export const HOLDER = randomUUID()

/** What tells a process from all others that a host has run: processes of one `host` can see each other by their numbers. */
export type ProcessIdentity = { host: string; pid: number; started: string }

const fieldsOf = (pid: number): string[] => {
  const stat = readFileSync(`/proc/${pid}/stat`, 'utf8')
  // Behind the name, which may hold anything: the state is the first, the time of the start the twentieth.
  return stat.slice(stat.lastIndexOf(')') + 2).split(' ')
}

/** This process; null where the system does not tell. Containers have numbers of their own, and so count as hosts. */
export function ownIdentity(): ProcessIdentity | null {
  try {
    const boot = readFileSync('/proc/sys/kernel/random/boot_id', 'utf8').trim()
    return {
      host: `${boot} ${readlinkSync('/proc/self/ns/pid')}`,
      pid: process.pid,
      started: fieldsOf(process.pid)[19],
    }
  } catch {
    return null
  }
}

/** Whether a process of this host has ended; its number may be that of another one by now. */
export function hasProcessEnded({ pid, started }: Pick<ProcessIdentity, 'pid' | 'started'>): boolean {
  try {
    process.kill(pid, 0)
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ESRCH') return true
  }
  try {
    const fields = fieldsOf(pid)
    return fields[0] === 'Z' || fields[19] !== started
  } catch {
    // It may be hidden from this user.
    return false
  }
}
