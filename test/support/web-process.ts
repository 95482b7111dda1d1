import { type ChildProcess, spawn } from 'node:child_process'
import path from 'node:path'
import { createInterface } from 'node:readline'
import { testEnvironment } from './app.ts'

const root = path.resolve(import.meta.dirname, '../..')

export type WebProcess = { url: string; process: ChildProcess; stop(): Promise<void> }

/** Starts `src/web.ts` as a process of its own on a migrated database; answers once it listens. */
export async function startWebProcess(databaseUrl: string, env: Record<string, string> = {}): Promise<WebProcess> {
  const child = spawn(process.execPath, [path.join(root, 'src/web.ts')], {
    cwd: root,
    env: { PATH: process.env.PATH ?? '', ...testEnvironment(databaseUrl), ...env },
    stdio: ['ignore', 'pipe', 'pipe'],
  })
  const ended = new Promise<void>(resolve => child.once('exit', () => resolve()))
  const errors: string[] = []
  child.stderr.on('data', chunk => errors.push(String(chunk)))
  const port = await new Promise<number>((resolve, reject) => {
    const late = setTimeout(() => reject(new Error(`web did not start: ${errors.join('')}`)), 20_000)
    void ended.then(() => reject(new Error(`web ended: ${errors.join('')}`)))
    createInterface({ input: child.stdout }).on('line', line => {
      const said = line.startsWith('{') ? (JSON.parse(line) as { msg?: string; port?: number }) : {}
      if (said.msg !== 'web is ready') return
      clearTimeout(late)
      resolve(said.port as number)
    })
  }).catch(error => {
    child.kill('SIGKILL')
    throw error
  })
  return {
    url: `http://127.0.0.1:${port}`,
    process: child,
    async stop() {
      child.kill('SIGTERM')
      const late = setTimeout(() => child.kill('SIGKILL'), 5000)
      await ended
      clearTimeout(late)
    },
  }
}
