import type { ChildProcess } from 'node:child_process'
import type { Readable } from 'node:stream'

/** Hands on what a process prints, line by line; returns what gives the lines that have begun. */
export function readLines(child: ChildProcess, onLine: (line: string) => void): () => string {
  const rests = new Map<Readable, string>()
  for (const stream of [child.stdout, child.stderr])
    stream?.on('data', (chunk: Buffer) => {
      const lines = ((rests.get(stream) ?? '') + chunk).split('\n')
      rests.set(stream, lines.pop() as string)
      for (const line of lines) onLine(line)
    })
  return () => [...rests.values()].join('')
}

/** The port in the line with which a process reports that it is ready. */
export function readyPort(line: string): number | null {
  const found = /"(?:port|health_port)":(\d+)/.exec(line)
  return found && line.includes('is ready') ? Number(found[1]) : null
}
