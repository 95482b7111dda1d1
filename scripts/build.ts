import { execFile } from 'node:child_process'
import fs from 'node:fs'
import path from 'node:path'
import { promisify } from 'node:util'
import { CONSOLE_INPUTS, hashFile, hashFiles } from '#local/build.ts'

/**
 * `npm run build`: writes everything that is generated from the sources, without a database or a network. A step whose
 * inputs have the hash that it stored last is skipped.
 */

const root = path.resolve(import.meta.dirname, '..')
const run = promisify(execFile)

/** Programs in order; a step reads `inputs` and outputs of earlier steps, and writes `outputs`. */
type Step = { name: string; inputs: string[]; outputs: string[]; programs: string[][] }

const steps: Step[] = [
  {
    name: 'description',
    inputs: ['src/**/*.ts', 'scripts/describe.ts', 'package.json', 'package-lock.json'],
    outputs: ['client/openapi.json'],
    programs: [['scripts/describe.ts']],
  },
  {
    name: 'client',
    inputs: [
      'client/openapi.json',
      'client/build/*.ts',
      'client/src/*.ts',
      'client/tsconfig.json',
      'client/package.json',
      'package-lock.json',
    ],
    outputs: ['client/src/generated', 'client/dist', 'client/commands.json'],
    programs: [['client/build/generate.ts'], ['node_modules/typescript-native/bin/tsc', '-p', 'client']],
  },
  {
    name: 'reference',
    inputs: ['scripts/reference.ts', 'scripts/vendor/*'],
    outputs: ['docs/dist/scalar.js'],
    programs: [['scripts/reference.ts']],
  },
  {
    name: 'command line',
    inputs: [
      'cli/src/*.ts',
      'scripts/bundle-cli.ts',
      'client/build/*.ts',
      'client/src/**/*.ts',
      'package.json',
      'package-lock.json',
    ],
    outputs: ['cli/dist'],
    programs: [['scripts/bundle-cli.ts']],
  },
  {
    name: 'packages',
    inputs: [
      ...['bin/muster.mjs', 'cli/dist/*', 'cli/price-book.json', 'cli/src/*.ts', 'client/commands.json'],
      ...['client/build/*.ts', 'client/dist/**/*', 'client/openapi.json', 'client/python/**/*', 'client/src/**/*.ts'],
      ...['client/README.md', 'client/package.json'],
      ...[
        'scripts/archives.ts',
        'scripts/package-scope.ts',
        'scripts/packages.ts',
        'package.json',
        'package-lock.json',
        'LICENSE',
      ],
    ],
    outputs: ['packages/dist'],
    programs: [['scripts/packages.ts']],
  },
  {
    name: 'console',
    inputs: CONSOLE_INPUTS,
    outputs: ['console/dist'],
    programs: [['node_modules/vite/bin/vite.js', 'build', 'console'], ['scripts/compress.ts']],
  },
]

const storedHash = (name: string): string | null =>
  fs.existsSync(hashFile(root, name)) ? fs.readFileSync(hashFile(root, name), 'utf8') : null

for (const { name, inputs, outputs, programs } of steps) {
  const hash = hashFiles(root, inputs)
  const files = outputs.map(each => path.join(root, each))
  if (storedHash(name) === hash && files.every(file => fs.existsSync(file))) continue
  const start = Date.now()
  for (const file of [hashFile(root, name), ...files]) fs.rmSync(file, { recursive: true, force: true })
  for (const program of programs)
    try {
      await run(process.execPath, program, { cwd: root, maxBuffer: 64 * 1024 * 1024 })
    } catch (error) {
      const { stdout, stderr } = error as { stdout: string; stderr: string }
      console.error(`${name}: ${program.join(' ')} failed\n${stdout}${stderr}`)
      process.exit(1)
    }
  fs.mkdirSync(path.dirname(hashFile(root, name)), { recursive: true })
  fs.writeFileSync(hashFile(root, name), hash)
  console.log(`${name}: built in ${((Date.now() - start) / 1000).toFixed(1)} s`)
}
