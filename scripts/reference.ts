import { execFileSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import fs from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { brotliCompressSync, brotliDecompressSync } from 'node:zlib'

/**
 * Writes the script of the interactive reference to `docs/dist/scalar.js`, with its license, from `scripts/vendor`. It is one
 * file of a package whose dependencies the file contains already, so the package is not installed. With a version as argument,
 * it downloads the file of that version, which npm verifies, and records it.
 */

const PACKAGE = '@scalar/api-reference'
const FILE = 'dist/browser/standalone.js'
const vendor = path.join(import.meta.dirname, 'vendor')
const archive = path.join(vendor, 'scalar.js.br')
const record = path.join(vendor, 'scalar.json')
const target = path.resolve(import.meta.dirname, '../docs/dist/scalar.js')

const checksum = (content: Buffer): string => `sha512-${createHash('sha512').update(content).digest('base64')}`

function replaceFile(version: string): void {
  const folder = fs.mkdtempSync(path.join(tmpdir(), 'muster-scalar-'))
  try {
    const arguments_ = ['pack', `${PACKAGE}@${version}`, '--json', '--ignore-scripts', '--pack-destination', folder]
    const [packed] = JSON.parse(execFileSync('npm', arguments_, { encoding: 'utf8' }))
    execFileSync('tar', ['-xzf', path.join(folder, packed.filename), '-C', folder, `package/${FILE}`])
    const content = fs.readFileSync(path.join(folder, 'package', FILE))
    fs.writeFileSync(archive, brotliCompressSync(content))
    const origin = { package: PACKAGE, version: packed.version, integrity: packed.integrity, file: FILE }
    fs.writeFileSync(record, `${JSON.stringify({ ...origin, file_integrity: checksum(content) }, null, 2)}\n`)
  } finally {
    fs.rmSync(folder, { recursive: true })
  }
}

/** @throws Error if the content is not the recorded file */
function writeFile(): void {
  const content = brotliDecompressSync(fs.readFileSync(archive))
  const { version, file_integrity } = JSON.parse(fs.readFileSync(record, 'utf8'))
  if (checksum(content) !== file_integrity) throw new Error(`${archive} is not ${FILE} of ${PACKAGE} ${version}`)
  const license = fs.readFileSync(path.join(vendor, 'scalar.LICENSE'), 'utf8')
  fs.mkdirSync(path.dirname(target), { recursive: true })
  fs.writeFileSync(target, Buffer.concat([Buffer.from(`/*! ${PACKAGE} ${version}\n\n${license}*/\n`), content]))
}

const [version] = process.argv.slice(2)
if (version) replaceFile(version)
writeFile()
