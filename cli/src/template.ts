import fs from 'node:fs'
import path from 'node:path'
import { ExactNumber } from '@muster/client'
import { UsageError } from './failure.ts'
import { parseDocument } from './values.ts'

type Template = Record<string, any>

const FILE = /\$\{file:([^}]+)\}/g
const TEMPLATE = /\.(ya?ml|json)$/i

/**
 * Reads a template from a file, or from all templates of a directory, which together are one. `${file:./prompt.md}` in
 * a text is replaced by the file, which must be below the directory of the template.
 */
export async function readTemplate(target: string): Promise<{ name: string; template: Template }> {
  if (!fs.existsSync(target)) throw new UsageError(`${target} does not exist`)
  const isDirectory = fs.statSync(target).isDirectory()
  const root = fs.realpathSync(isDirectory ? target : path.dirname(target))
  const files = isDirectory
    ? fs
        .readdirSync(root)
        .filter(each => TEMPLATE.test(each))
        .sort()
        .map(each => path.join(root, each))
    : [target]
  if (files.length === 0) throw new UsageError(`${target} has no YAML or JSON file`)
  const template: Template = {}
  for (const file of files) {
    const part = await parsePart(file)
    merge(template, withFiles(part, path.dirname(file), root) as Template, file)
  }
  const name = isDirectory ? path.basename(root) : path.basename(target).replace(TEMPLATE, '')
  return { name, template }
}

async function parsePart(file: string): Promise<Template> {
  let part: unknown
  try {
    part = await parseDocument(fs.readFileSync(file, 'utf8'), file)
  } catch (error) {
    if (error instanceof UsageError) throw error
    throw new UsageError(`${file}: ${(error as Error).message}`)
  }
  if (typeof part !== 'object' || part === null || Array.isArray(part)) throw new UsageError(`${file} is no template`)
  return part as Template
}

function merge(template: Template, part: Template, file: string): void {
  for (const [section, value] of Object.entries(part)) {
    if (!(section in template)) {
      template[section] = value
      continue
    }
    if (typeof value !== 'object' || value === null || Array.isArray(value) || typeof template[section] !== 'object')
      throw new UsageError(`${file}: ${section} is in another file too`)
    for (const [name, entry] of Object.entries(value)) {
      if (name in template[section]) throw new UsageError(`${file}: ${section}.${name} is in another file too`)
      template[section][name] = entry
    }
  }
}

function withFiles(value: unknown, directory: string, root: string): unknown {
  if (typeof value === 'string')
    return value.replace(FILE, (_, name: string) => readBelow(path.resolve(directory, name.trim()), root))
  if (Array.isArray(value)) return value.map(each => withFiles(each, directory, root))
  if (typeof value !== 'object' || value === null || value instanceof ExactNumber) return value
  return Object.fromEntries(Object.entries(value).map(([name, each]) => [name, withFiles(each, directory, root)]))
}

/** Reads a file of the template. Any other file would let the author of a template read it. */
function readBelow(file: string, root: string): string {
  try {
    const real = fs.realpathSync(file)
    if (!real.startsWith(`${root}${path.sep}`)) throw new UsageError(`${file} is not below ${root}`)
    return fs.readFileSync(real, 'utf8')
  } catch (error) {
    if (error instanceof UsageError) throw error
    throw new UsageError(`${file} cannot be read: ${(error as Error).message}`)
  }
}
