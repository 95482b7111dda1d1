import { execFileSync } from 'node:child_process'
import fs from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { extract } from 'tar'
import { testEnvironment } from '../support/environment.ts'
import { inherited, root, startProcess, type TestProcess } from '../support/processes.ts'

/** The release before this one. Its sources are packed, because a clone may have neither history nor tags. */
export const PREVIOUS = '0.1.0'

export type PreviousRelease = {
  /** Runs the migrations of the release. */
  migrate(databaseUrl: string): void
  start(kind: 'web' | 'worker', databaseUrl: string, env: Record<string, string>): Promise<TestProcess>
  close(): Promise<void>
}

/** Unpacks the sources of the release before, which run with the packages of this one. */
export async function unpackPrevious(): Promise<PreviousRelease> {
  const directory = fs.mkdtempSync(path.join(tmpdir(), 'muster-previous-'))
  await extract({ file: path.join(import.meta.dirname, `${PREVIOUS}.tar.gz`), cwd: directory })
  fs.symlinkSync(path.join(root, 'node_modules'), path.join(directory, 'node_modules'))
  return {
    migrate: databaseUrl =>
      void execFileSync(process.execPath, ['bin/muster.ts', 'migrate'], {
        cwd: directory,
        env: { ...inherited(), ...testEnvironment(databaseUrl) },
        stdio: 'pipe',
      }),
    start: (kind, databaseUrl, env) => startProcess(kind, databaseUrl, env, [], undefined, undefined, directory),
    close: async () => fs.rmSync(directory, { recursive: true }),
  }
}
