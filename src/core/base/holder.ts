import { randomUUID } from 'node:crypto'
import { readFileSync, readlinkSync } from 'node:fs'

/** Unique id of this process, stored in its leases. */
export const HOLDER = randomUUID()

/** Returns the name of this process in its heartbeats. Workers may share INSTANCE_ID, and a web process may run workers. */
export const instanceId = ({ INSTANCE_ID }: { INSTANCE_ID: string }, kind: 'worker' | 'web'): string =>
  kind === 'web' ? `${INSTANCE_ID}:web:${HOLDER}` : `${INSTANCE_ID}:${HOLDER}`

/** Returns the unique ID of a process by its name in heartbeats; null if the name has none. */
export const holderOf = (instanceId: string): string | null => /(?<![^:])[0-9a-f-]{36}$/.exec(instanceId)?.[0] ?? null

/** Identity of a process among all past processes of a host. Processes with the same `host` share a PID namespace. */
export type ProcessIdentity = { host: string; pid: number; started: string }

const fieldsOf = (pid: number): string[] => {
  const stat = readFileSync(`/proc/${pid}/stat`, 'utf8')
  // After the process name, which may contain any character: field 0 is the state, field 19 the start time.
  return stat.slice(stat.lastIndexOf(')') + 2).split(' ')
}

/** Returns the identity of this process; null without procfs. A container with its own PID namespace counts as a host. */
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

/** Whether a process of this host has ended. Compares the start time, because its PID may have been reused. */
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
    // The process may be hidden from this user.
    return false
  }
}
