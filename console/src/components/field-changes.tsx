import { Code, Group, Stack, Text } from '@mantine/core'
import { isObject } from '#json.ts'
import * as strings from '#strings.ts'
import { visible } from './text.tsx'
import { Value } from './value.tsx'

/** Length to which a value is shown in its line. */
const SHORT = 160

type Change = { path: string; before: unknown; after: unknown }

/** Returns the parts of a value that differ, by their paths; lists are compared as a whole. */
function changesBetween(before: unknown, after: unknown, path = ''): Change[] {
  if (isObject(before) && isObject(after))
    return [...new Set([...Object.keys(before), ...Object.keys(after)])].flatMap(key =>
      changesBetween(before[key], after[key], path ? `${path}.${key}` : key),
    )
  return JSON.stringify(before) === JSON.stringify(after) ? [] : [{ path, before, after }]
}

/** What differs between two values: each part with its value before and after. */
export function FieldChanges({ before, after }: { before: unknown; after: unknown }) {
  const changes = changesBetween(before, after)
  if (changes.length === 0) return <Text c="dimmed">{strings.fieldChanges.same}</Text>
  return (
    <Stack gap="sm" role="group" aria-label={strings.fieldChanges.title}>
      {changes.map(change => (
        <Stack gap={4} key={change.path}>
          {change.path && (
            <Text size="sm" fw={600} className="mono">
              {visible(change.path)}
            </Text>
          )}
          <Line sign="−" value={change.before} label={`${change.path} ${strings.agents.before}`} />
          <Line sign="+" value={change.after} label={`${change.path} ${strings.agents.after}`} />
        </Stack>
      ))}
    </Stack>
  )
}

function Line({ sign, value, label }: { sign: string; value: unknown; label: string }) {
  if (value === undefined) return null
  const text = JSON.stringify(value)
  return text.length > SHORT ? (
    <Stack gap={2}>
      <Text size="sm">{sign}</Text>
      <Value value={value} label={label} />
    </Stack>
  ) : (
    <Group gap="sm" wrap="nowrap" align="baseline">
      <Text className="mono" aria-label={label}>
        {sign}
      </Text>
      <Code
        className="wrap"
        color={sign === '+' ? 'var(--mantine-color-teal-light)' : 'var(--mantine-color-red-light)'}
      >
        {visible(text)}
      </Code>
    </Group>
  )
}
