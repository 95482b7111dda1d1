import { type ChildProcess, fork } from 'node:child_process'

/**
 * Starts a program for content of callers with an empty environment. It gets bytes by its standard input and messages by its
 * channel, and should exit when the channel is closed. It does not keep this process running.
 * @param rights flags of Node, with the permissions of the program
 */
export function startConfined(program: string | URL, args: readonly string[], rights: readonly string[]): ChildProcess {
  const child = fork(program, args, {
    env: {},
    execArgv: [...rights],
    stdio: ['pipe', 'ignore', 'ignore', 'ipc'],
    serialization: 'advanced',
  })
  // Errors of an active process are handled by its exit; an idle process is replaced.
  child.on('error', () => {})
  child.stdin?.on('error', () => {})
  child.unref()
  child.channel?.unref()
  return child
}
