import assert from 'node:assert/strict'
import fs from 'node:fs'
import path from 'node:path'
import ts from 'typescript'

/** Most lines of a function of `src`. */
const MAX_LINES = 100

/** Longer functions with their lines. The list only shrinks: a function that is split leaves it. */
const LONGER: Record<string, number> = {
  'conversation/dialog/mailbox/source.ts turnSource': 140,
  'core/work/store.ts workTable': 144,
  'identity/oauth/provider.ts configuration': 184,
}

/** Fields that code outside their class could write. The list only shrinks. */
const WRITABLE = [
  'automation/orchestrations/runs/engine/advance.ts Advance.slotMissing',
  'automation/triggers/events.ts EventFilters.cost',
  'content/files/receive-upload.ts UploadStaging.failure',
  'content/index/embeddings/local.ts Dictionary.size',
  'core/db/pg-client.ts DatabaseClient.isConnected',
  'core/db/pg-client.ts DatabaseClient.openedAt',
  'core/db/server-watchdog.ts WatchedAddress.closed',
  'core/db/server-watchdog.ts WatchedAddress.endedAt',
  'core/db/server-watchdog.ts WatchedAddress.probing',
  'core/db/server-watchdog.ts WatchedAddress.unresponsive',
  'execution/generations/streams/turn-text.ts TurnFollower.text',
  'execution/generations/tools/json-patch.ts Patch.document',
  'execution/providers/event-stream.ts ResponseWatch.hasEnded',
  'execution/providers/event-stream.ts ResponseWatch.unstreamed',
  'execution/tools/mcp-client.ts AnswerSearch.message',
  'execution/tools/mcp-client.ts AnswerSearch.refused',
  'protocols/a2a/stream.ts SentText.text',
  'protocols/event-format.ts EventFormat.isEnded',
  'protocols/event-format.ts EventFormat.translate',
]

const src = path.resolve(import.meta.dirname, '../src')

const parse = (text: string): ts.SourceFile => ts.createSourceFile('source.ts', text, ts.ScriptTarget.Latest, true)

function walk(node: ts.Node, visit: (node: ts.Node) => void): void {
  visit(node)
  ts.forEachChild(node, child => walk(child, visit))
}

const nameOf = (node: ts.Node): string => {
  const named = [node, node.parent].find(each => 'name' in each && each.name)
  return (named as { name?: ts.Node } | undefined)?.name?.getText() ?? 'anonymous'
}

/** Returns the functions with more lines than `max`, with their lines. */
function longFunctions(source: ts.SourceFile, max: number): [name: string, lines: number][] {
  const lineAt = (position: number): number => source.getLineAndCharacterOfPosition(position).line
  const found: [string, number][] = []
  walk(source, node => {
    if (!ts.isFunctionLike(node)) return
    const lines = lineAt(node.end) - lineAt(node.getStart()) + 1
    if (lines > max) found.push([nameOf(node), lines])
  })
  return found
}

const GUARDED = new Set([ts.SyntaxKind.PrivateKeyword, ts.SyntaxKind.ReadonlyKeyword, ts.SyntaxKind.DeclareKeyword])

/** Returns the fields of classes that are neither private nor readonly. */
function writableFields(source: ts.SourceFile): string[] {
  const found: string[] = []
  walk(source, node => {
    if (!ts.isPropertyDeclaration(node) || ts.isPrivateIdentifier(node.name)) return
    if (!node.modifiers?.some(({ kind }) => GUARDED.has(kind))) found.push(`${nameOf(node.parent)}.${nameOf(node)}`)
  })
  return found
}

/** Returns the methods of classes by the names of the class and of its type aliases. */
function methodsByType(sources: Iterable<ts.SourceFile>): Map<string, Set<string>> {
  const methods = new Map<string, Set<string>>()
  const aliases: [name: string, of: string][] = []
  for (const source of sources)
    walk(source, node => {
      if (ts.isClassDeclaration(node) && node.name) {
        const called = node.members.filter(ts.isMethodDeclaration).map(({ name }) => name.getText())
        methods.set(node.name.text, new Set(called))
      } else if (ts.isTypeAliasDeclaration(node) && ts.isTypeReferenceNode(node.type))
        aliases.push([node.name.text, node.type.typeName.getText()])
    })
  for (const [name, of] of aliases) if (methods.has(of)) methods.set(name, methods.get(of) as Set<string>)
  return methods
}

/** Returns the methods that parameters and variables take from an object by destructuring, and that so lose it. */
function detachedMethods(source: ts.SourceFile, methods: ReadonlyMap<string, ReadonlySet<string>>): string[] {
  const found: string[] = []
  walk(source, node => {
    if (!(ts.isParameter(node) || ts.isVariableDeclaration(node)) || !ts.isObjectBindingPattern(node.name)) return
    if (!node.type || !ts.isTypeReferenceNode(node.type)) return
    const type = node.type.typeName.getText()
    for (const { name, propertyName } of node.name.elements) {
      const taken = (propertyName ?? name).getText()
      if (methods.get(type)?.has(taken)) found.push(`${type}.${taken}`)
    }
  })
  return found
}

describe('state of src', () => {
  const long: [string, number][] = []
  const writable: string[] = []
  const detached: string[] = []

  before(function () {
    this.timeout(120_000)
    const files = fs.readdirSync(src, { recursive: true, encoding: 'utf8' }).filter(file => file.endsWith('.ts'))
    assert.ok(files.length > 1000, `${files.length} files`)
    const sources = new Map(files.map(file => [file, parse(fs.readFileSync(path.join(src, file), 'utf8'))]))
    const methods = methodsByType(sources.values())
    for (const [file, source] of sources) {
      for (const [name, lines] of longFunctions(source, MAX_LINES)) long.push([`${file} ${name}`, lines])
      writable.push(...writableFields(source).map(name => `${file} ${name}`))
      detached.push(...detachedMethods(source, methods).map(name => `${file} ${name}`))
    }
  })

  it('is in functions of at most 100 lines, except the functions of a list that only shrinks', () => {
    const grown = long.filter(([name, lines]) => lines > (LONGER[name] ?? MAX_LINES))
    assert.deepEqual(grown, [], 'split these functions, or make a class of a factory that returns closures')
    const left = Object.keys(LONGER).filter(name => !long.some(([other]) => other === name))
    assert.deepEqual(left, [], 'remove these from LONGER')
  })

  it('is in fields that only their class writes, except the fields of a list that only shrinks', () => {
    assert.deepEqual(
      writable.filter(name => !WRITABLE.includes(name)),
      [],
      'make these fields private or readonly, with a method for each change',
    )
    assert.deepEqual(
      WRITABLE.filter(name => !writable.includes(name)),
      [],
      'remove these from WRITABLE',
    )
  })

  it('stays with its methods: none is taken from its object by destructuring', () => {
    assert.deepEqual(detached, [], 'call these as methods of their object')
    const text = `class Store { save() {} }\n type Stores = Store\n const add = ({ save, name: other }: Stores) => save()`
    const source = parse(text)
    assert.deepEqual(detachedMethods(source, methodsByType([source])), ['Stores.save'])
  })

  it('is found in declarations, methods and closures', () => {
    const body = '\n'.repeat(4)
    const text = [
      `function first() {${body}}`,
      `const second = () => {${body}}`,
      `class Third { readonly set = 1; private own = 1; #hidden = 1; open = 1; #fourth() {${body}} }`,
      'function short() {\n}',
    ].join('\n')
    assert.deepEqual(longFunctions(parse(text), 4), [
      ['first', 5],
      ['second', 5],
      ['#fourth', 5],
    ])
    assert.deepEqual(writableFields(parse(text)), ['Third.open'])
  })
})
