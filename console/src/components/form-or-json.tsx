import { SegmentedControl, Stack } from '@mantine/core'
import { type ReactNode, useState } from 'react'
import * as strings from '#strings.ts'
import { DraftScope } from './draft.tsx'
import { SchemaForm, type Values } from './schema-form.tsx'

const jsonSchema = {
  properties: { record: { type: 'object', title: strings.json, description: strings.agents.jsonHelp } },
  required: ['record'],
}

/** A form, or the same record as JSON, for what the form has no field. Only fields that differ are submitted. */
export function FormOrJson({
  form,
  record,
  onSubmit,
  ...rest
}: {
  form: ReactNode
  /** The fields that may be written, with their values. */
  record: Values
  onSubmit: (values: Values) => void
  submitLabel?: string
  isPending?: boolean
  error?: unknown
  onCancel?: () => void
}) {
  const [mode, setMode] = useState<'form' | 'json'>('form')
  return (
    <Stack gap="md">
      <SegmentedControl
        value={mode}
        onChange={value => setMode(value as 'form' | 'json')}
        data={[
          { value: 'form', label: strings.agents.form },
          { value: 'json', label: strings.json },
        ]}
        w="fit-content"
        aria-label={strings.agents.form}
      />
      {mode === 'form' ? (
        form
      ) : (
        // Which of its fields are secrets is not known.
        <DraftScope value={null}>
          <SchemaForm
            key="json"
            schema={jsonSchema}
            start={{ record }}
            onSubmit={({ record: written }) =>
              onSubmit(
                Object.fromEntries(
                  Object.entries(written as Values).filter(
                    ([name, value]) => JSON.stringify(value) !== JSON.stringify(record[name]),
                  ),
                ),
              )
            }
            {...rest}
          />
        </DraftScope>
      )}
    </Stack>
  )
}
