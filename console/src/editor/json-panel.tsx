import { CompletedText, type Completion } from '#components/completed-text.tsx'
import type { Values } from '#components/schema-form.tsx'
import { isObject } from '#json.ts'
import * as strings from '#strings.ts'
import { aboutOf } from './fields.ts'
import { cursorAt, schemaAt } from './json-cursor.ts'
import type { GraphKind, Records } from './kind.ts'

const texts = strings.editor

type Option = Completion['options'][number]

/** Returns the fields that an object at a place may have, without those before it. */
function keyOptions(kind: GraphKind, path: readonly (string | number)[], siblings: Values): Option[] {
  const properties = schemaAt(kind.schema, path)?.properties
  if (!isObject(properties)) return []
  return (kind.keys(path, siblings) ?? Object.keys(properties))
    .filter(name => name in properties && !(name in siblings))
    .map(name => {
      const { description } = properties[name] as { description?: string }
      return { text: `"${name}": `, label: name, about: aboutOf(description) }
    })
}

/** Returns the values that the schema, or what exists, names for a place. */
function valueOptions(
  kind: GraphKind,
  definition: Values,
  records: Records,
  path: readonly (string | number)[],
  siblings: Values,
): Option[] {
  const { enum: values, type } = (schemaAt(kind.schema, path) ?? {}) as { enum?: unknown[]; type?: unknown }
  const last = [...path].reverse().find(step => typeof step === 'string') as string
  const named = (kind.texts(definition, path, siblings) ?? records[last] ?? []).map(({ value, label }) => ({
    text: JSON.stringify(value),
    label: value,
    about: label,
  }))
  const fixed = values ?? ([type].flat().includes('boolean') ? [true, false] : [])
  return [
    ...named,
    ...fixed.filter(value => value !== null).map(value => ({ text: JSON.stringify(value), label: String(value) })),
  ]
}

const INPUT = 'definition'

/** Selects the line that names a node, and brings it into view: a text area does not do that by itself. */
export function showInText(text: string, key: string, name: string): void {
  const input = document.getElementById(INPUT) as HTMLTextAreaElement | null
  const at = text.indexOf(`"${key}": ${JSON.stringify(name)}`)
  if (!input || at < 0) return
  input.focus({ preventScroll: true })
  input.setSelectionRange(at, text.indexOf('\n', at))
  const line = text.slice(0, at).split('\n').length
  input.scrollTop = (input.scrollHeight * line) / text.split('\n').length - input.clientHeight / 2
}

/** The definition as JSON, with completion of fields, values and names. */
export function JsonPanel({
  kind,
  definition,
  records,
  value,
  onChange,
  error,
  rows,
}: {
  kind: GraphKind
  definition: Values
  records: Records
  value: string
  onChange: (value: string) => void
  error: string | null
  rows: number
}) {
  const complete = (text: string, place: number): Completion | null => {
    const { path, isKey, written, begin, end, isQuoted, siblings } = cursorAt(text, place)
    const options = (
      isKey ? keyOptions(kind, path, siblings) : valueOptions(kind, definition, records, path, siblings)
    ).filter(({ label, about }) => {
      const wanted = written.toLowerCase()
      return (
        label.toLowerCase().includes(wanted) ||
        String(about ?? '')
          .toLowerCase()
          .startsWith(wanted)
      )
    })
    const hasColon = /^\s*:/.test(text.slice(end, end + 20))
    return {
      begin,
      end,
      isOffered: isQuoted || written !== '',
      options: hasColon ? options.map(each => ({ ...each, text: each.text.replace(/: $/, '') })) : options,
    }
  }
  return (
    <CompletedText
      id={INPUT}
      label={texts.jsonLabel}
      description={texts.jsonHelp}
      error={error}
      value={value}
      onChange={onChange}
      complete={complete}
      rows={rows}
    />
  )
}
