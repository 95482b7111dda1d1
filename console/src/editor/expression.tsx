import { ActionIcon, Button, Group, Paper, Select, Stack, Text, TextInput } from '@mantine/core'
import { parseExactJson } from '@muster/client'
import { IconPlus, IconX } from '@tabler/icons-react'
import { type ReactNode, useState } from 'react'
import type { Choice } from '#choices.ts'
import { CompletedText, type Completion } from '#components/completed-text.tsx'
import { visible } from '#components/text.tsx'
import { isObject, jsonText, meant } from '#json.ts'
import * as strings from '#strings.ts'
import type { Available } from './kind.ts'

const texts = strings.editor

/** An input whose text is not always a value: texts that are none are kept until they are. */
export type Entry<Text = string> = { text: Text; change: (text: Text) => void; isWrong: boolean }

/** Texts of fields that are no value, by the path of the field. */
export type Unfinished = Record<string, unknown>

/** State of an input: its text follows the value, and the value follows the text while it has one. */
export function useEntry<Text>({
  value,
  textOf,
  parse,
  path,
  unfinished,
  onUnfinished,
  onChange,
}: {
  value: unknown
  textOf: (value: unknown) => Text
  /** Throws for a text that is no value. */
  parse: (text: Text) => unknown
  path: string
  unfinished: Unfinished
  onUnfinished: (path: string, text: Text | undefined) => void
  onChange: (value: unknown) => void
}): Entry<Text> {
  const own = JSON.stringify(value)
  const [text, setText] = useState<Text>(() => (path in unfinished ? (unfinished[path] as Text) : textOf(value)))
  const [known, setKnown] = useState(own)
  if (own !== known) {
    setKnown(own)
    setText(textOf(value))
  }
  const change = (next: Text) => {
    setText(next)
    try {
      const parsed = parse(next)
      setKnown(JSON.stringify(parsed))
      onChange(parsed)
      if (path in unfinished) onUnfinished(path, undefined)
    } catch {
      onUnfinished(path, next)
    }
  }
  return { text, change, isWrong: path in unfinished }
}

const isJson = (text: string): boolean => /^\s*[[{"]/.test(text)

/** The text of an expression: texts that cannot be taken for JSON are written without quotes. */
const expressionText = (value: unknown): string =>
  value === undefined
    ? ''
    : typeof value === 'string' && !isJson(value) && meant(value) === value
      ? value
      : jsonText(value)

const parseExpression = (text: string): unknown =>
  text.trim() === '' ? undefined : isJson(text) ? parseExactJson(text) : meant(text)

/** Completes the names of values in an expression; outside quotes it inserts a whole expression. */
const completeValue =
  (values: readonly Available[]) =>
  (text: string, place: number): Completion | null => {
    let start = place
    while (/[\w.-]/.test(text.charAt(start - 1))) start--
    const name = text.slice(start, place)
    const isInside = text[start - 1] === '"'
    const end = isInside && text[place] === '"' ? place + 1 : place
    const options = values
      .filter(each => each.name.includes(name) && each.name !== name)
      .map(each => ({
        text: isInside ? `"${each.name}"` : `{"var": "${each.name}"}`,
        label: each.name,
        about: visible(each.about),
      }))
    return { begin: isInside ? start - 1 : start, end, isOffered: name.length > 0, options }
  }

/** An expression as a text, with completion of the values that it can read. */
export function ExpressionField({
  label,
  description,
  error,
  values,
  disabled,
  ...entry
}: {
  label: string
  description?: string
  error?: string
  values: readonly Available[]
  disabled?: boolean
} & Omit<Parameters<typeof useEntry<string>>[0], 'textOf' | 'parse'>) {
  const { text, change, isWrong } = useEntry({ ...entry, textOf: expressionText, parse: parseExpression })
  return (
    <CompletedText
      label={label}
      description={description}
      error={isWrong ? strings.form.notJson : error}
      value={text}
      onChange={change}
      complete={completeValue(values)}
      disabled={disabled}
      autosize
      minRows={1}
      maxRows={12}
    />
  )
}

/** A name that is changed when it is complete and valid: another name may be in use while one is written. */
export function NameField({
  label,
  value,
  problemOf,
  onChange,
  id,
  isLabelHidden,
}: {
  label: string
  value: string
  problemOf: (name: string) => string | null
  onChange: (name: string) => void
  id?: string
  isLabelHidden?: boolean
}) {
  const [text, setText] = useState(value)
  const [known, setKnown] = useState(value)
  if (value !== known) {
    setKnown(value)
    setText(value)
  }
  const problem = text === value ? null : problemOf(text)
  const commit = () => {
    if (text !== value && !problem) onChange(text)
  }
  return (
    <TextInput
      id={id}
      label={isLabelHidden ? undefined : label}
      aria-label={isLabelHidden ? label : undefined}
      value={text}
      error={problem}
      onChange={event => setText(event.currentTarget.value)}
      onBlur={commit}
      onKeyDown={event => event.key === 'Enter' && commit()}
    />
  )
}

/** Several inputs that are one field. */
function FieldGroup({ label, description, children }: { label: string; description?: string; children: ReactNode }) {
  return (
    <Paper withBorder p="sm" radius="md" role="group" aria-label={label}>
      <Stack gap="sm">
        <div>
          <Text size="sm" fw={600}>
            {label}
          </Text>
          {description && (
            <Text size="xs" c="dimmed">
              {description}
            </Text>
          )}
        </div>
        {children}
      </Stack>
    </Paper>
  )
}

type MappingProps = {
  label: string
  description?: string
  /** Problems by the name of the entry; '' has problems of the whole. */
  errorOf: (name: string) => string | undefined
  value: unknown
  values: readonly Available[]
  path: string
  unfinished: Unfinished
  onUnfinished: (path: string, text: string | undefined) => void
  onChange: (value: unknown) => void
}

/** Names with an expression each. */
export function MappingField({ label, description, errorOf, value, onChange, path, ...common }: MappingProps) {
  const entries = Object.entries(isObject(value) ? value : {})
  const set = (next: [string, unknown][]) => onChange(next.length > 0 ? Object.fromEntries(next) : undefined)
  const isUsed = (name: string) => entries.some(([each]) => each === name)
  const add = () => {
    let name = 'value'
    for (let count = 2; isUsed(name); count++) name = `value_${count}`
    set([...entries, [name, null]])
  }
  return (
    <FieldGroup label={label} description={description}>
      {entries.map(([name, inner], index) => (
        <Group key={index} gap="xs" align="flex-start" wrap="nowrap">
          <Stack gap={4} flex={1} miw={0}>
            <NameField
              label={texts.entryName(label)}
              isLabelHidden
              value={name}
              problemOf={next => {
                if (next === '') return strings.form.required
                if (isUsed(next)) return texts.keyUsed
                return `${path}.${name}` in common.unfinished ? texts.valueFirst : null
              }}
              onChange={next => set(entries.map(([each, kept]) => [each === name ? next : each, kept]))}
            />
            <ExpressionField
              {...common}
              label={texts.entryValue(label, visible(name))}
              path={`${path}.${name}`}
              value={inner}
              error={errorOf(name)}
              onChange={next => set(entries.map(([each, kept]) => [each, each === name ? (next ?? null) : kept]))}
            />
          </Stack>
          <ActionIcon
            variant="subtle"
            color="gray"
            mt={4}
            aria-label={texts.removeEntry(label, visible(name))}
            onClick={() => {
              common.onUnfinished(`${path}.${name}`, undefined)
              set(entries.filter(([each]) => each !== name))
            }}
          >
            <IconX size={16} />
          </ActionIcon>
        </Group>
      ))}
      <Group>
        <Button size="xs" variant="default" leftSection={<IconPlus size={14} />} onClick={add}>
          {texts.addEntry(label)}
        </Button>
      </Group>
    </FieldGroup>
  )
}

/** Rules of a state: the first whose expression is true moves the task. */
export function RulesField({
  label,
  value,
  transitions,
  onChange,
  path,
  errorOf,
  description,
  ...common
}: MappingProps & { transitions: Choice[] }) {
  const rules = Array.isArray(value) ? value.filter(isObject) : []
  const set = (next: unknown[]) => onChange(next.length > 0 ? next : undefined)
  const replace = (at: number, change: object) =>
    set(rules.map((rule, index) => (index === at ? { ...rule, ...change } : rule)))
  return (
    <FieldGroup label={label} description={description}>
      {rules.map((rule, index) => (
        <Group key={index} gap="xs" align="flex-start" wrap="nowrap">
          <Stack gap={4} flex={1} miw={0}>
            <ExpressionField
              {...common}
              label={`${texts.rule(index + 1)}: ${texts.when}`}
              path={`${path}[${index}]`}
              value={rule.when}
              error={errorOf(String(index))}
              onChange={when => replace(index, { when })}
            />
            <Select
              aria-label={`${texts.rule(index + 1)}: ${texts.transition}`}
              data={transitions}
              value={typeof rule.transition === 'string' ? rule.transition : null}
              onChange={transition => replace(index, { transition })}
              allowDeselect={false}
            />
          </Stack>
          <ActionIcon
            variant="subtle"
            color="gray"
            aria-label={texts.remove(texts.rule(index + 1))}
            onClick={() => {
              common.onUnfinished(path, undefined)
              set(rules.filter((_, at) => at !== index))
            }}
          >
            <IconX size={16} />
          </ActionIcon>
        </Group>
      ))}
      <Group>
        <Button
          size="xs"
          variant="default"
          leftSection={<IconPlus size={14} />}
          onClick={() => set([...rules, { when: true, transition: transitions[0]?.value }])}
        >
          {texts.addEntry(label)}
        </Button>
      </Group>
    </FieldGroup>
  )
}
