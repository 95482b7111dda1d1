import { type ChildProcess, spawn } from 'node:child_process'
import path from 'node:path'

const root = path.resolve(import.meta.dirname, '../..')

/** Starts a program and answers the port it prints. */
export async function start(
  script: string,
  env: Record<string, string>,
  args: string[] = [],
): Promise<{ url: string; child: ChildProcess }> {
  const child = spawn('bin/launch', [script, ...args], {
    cwd: root,
    env: { PATH: process.env.PATH, HOME: process.env.HOME, ...env },
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  const port = await new Promise<number>((resolve, reject) => {
    child.once('exit', code => reject(new Error(`${script} ended with ${code}`)))
    child.stdout?.on('data', chunk => {
      const found = /"msg":"(?:web|worker|floor) is ready".*"port":(\d+)|"(?:port|health_port)":(\d+).*is ready"/.exec(
        String(chunk),
      )
      if (found) resolve(Number(found[1] ?? found[2]))
    })
  })
  return { url: `http://127.0.0.1:${port}`, child }
}
