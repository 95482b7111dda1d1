import { Button, type ButtonProps, Group } from '@mantine/core'
import * as strings from '#strings.ts'
import { FailureAlert } from './states.tsx'

/** The end of a form: why it was refused, and its buttons. */
export function SubmitRow({
  label = strings.save,
  cancelLabel = strings.cancel,
  cancelProps,
  isPending,
  error,
  onCancel,
  ...button
}: {
  label?: string
  cancelLabel?: string
  cancelProps?: { 'data-autofocus': true }
  isPending?: boolean
  error?: unknown
  onCancel?: () => void
} & Pick<ButtonProps, 'color' | 'disabled'>) {
  return (
    <>
      {Boolean(error) && <FailureAlert error={error} />}
      <Group>
        <Button type="submit" loading={isPending} {...button}>
          {label}
        </Button>
        {onCancel && (
          <Button variant="default" onClick={onCancel} {...cancelProps}>
            {cancelLabel}
          </Button>
        )}
      </Group>
    </>
  )
}
