import { Button, type ButtonProps, Group, Modal, Stack, Text } from '@mantine/core'
import { useDisclosure } from '@mantine/hooks'
import { notifications } from '@mantine/notifications'
import { useMutation, useQueryClient } from '@tanstack/react-query'
import type { ReactNode } from 'react'
import * as strings from '#strings.ts'
import { SubmitRow } from './submit-row.tsx'

/** Keys of the queries that an action makes stale. */
export type Stale = readonly unknown[][]

/** A mutation after which queries are read again and a message is shown. */
export function useAction<Input = void, Result = unknown>({
  run,
  stale = [],
  message,
  onDone,
}: {
  run: (input: Input) => Promise<Result>
  stale?: Stale
  message?: string
  onDone?: (result: Result) => void
}) {
  const cache = useQueryClient()
  return useMutation({
    mutationFn: async (input: Input) => run(input),
    onSuccess: result => {
      if (message) notifications.show({ message, color: 'teal' })
      onDone?.(result)
    },
    onSettled: () => Promise.all(stale.map(queryKey => cache.invalidateQueries({ queryKey }))),
  })
}

/** The form of a dialog that confirms an action. Its focus begins on the button that cancels. */
function Confirmation({
  text,
  action,
  onCancel,
  ...row
}: {
  text?: ReactNode
  label: string
  action: { mutate: () => void; isPending: boolean; error: unknown }
  onCancel: () => void
} & Pick<ButtonProps, 'color' | 'disabled'>) {
  return (
    <form
      onSubmit={event => {
        event.preventDefault()
        action.mutate()
      }}
    >
      <Stack gap="md">
        {text && <Text component="div">{text}</Text>}
        <SubmitRow
          {...row}
          isPending={action.isPending}
          error={action.error}
          onCancel={onCancel}
          cancelProps={{ 'data-autofocus': true }}
        />
      </Stack>
    </form>
  )
}

type Action = {
  label: string
  run: () => Promise<unknown>
  stale?: Stale
  message?: string
  onDone?: () => void
}

/** The content of a dialog that confirms an action. */
export function Question({
  text,
  label,
  close,
  color,
  disabled,
  onDone,
  ...options
}: Action & { text: ReactNode; close: () => void } & Pick<ButtonProps, 'color' | 'disabled'>) {
  const action = useAction({
    ...options,
    onDone: () => {
      close()
      onDone?.()
    },
  })
  return <Confirmation {...{ text, label, action, color, disabled }} onCancel={close} />
}

/** A button that runs an action, after a question where `question` is given: what the action does. */
export function ActionButton({ question, ...props }: Action & { question?: ReactNode } & ButtonProps) {
  if (!question) return <PlainActionButton {...props} />
  const { run, stale, message, onDone, ...button } = props
  return (
    <FormButton
      size="xs"
      variant="default"
      modalSize="md"
      {...button}
      form={close => (
        <Question
          {...{ run, stale, message, onDone, close }}
          text={question}
          label={button.label}
          color={button.color}
        />
      )}
    />
  )
}

/** A failure is explained in a dialog, which offers to try again. */
function PlainActionButton({ label, run, stale, message, onDone, ...button }: Action & ButtonProps) {
  const action = useAction({ run, stale, message, onDone })
  return (
    <>
      <Button size="xs" variant="default" {...button} loading={action.isPending} onClick={() => action.mutate()}>
        {label}
      </Button>
      <Modal opened={action.isError} onClose={action.reset} title={label}>
        <Confirmation label={strings.retry} action={action} color={button.color} onCancel={action.reset} />
      </Modal>
    </>
  )
}

/** The buttons of a row: in one line if it is wide enough. */
export function RowActions({ children }: { children: ReactNode }) {
  return (
    <Group gap="xs" className="row-actions">
      {children}
    </Group>
  )
}

/** A button that opens a dialog with a form; `form` receives a function that closes it. */
export function FormButton({
  label,
  title = label,
  form,
  modalSize = 'lg',
  ...props
}: {
  label: string
  title?: string
  form: (close: () => void) => ReactNode
  modalSize?: string
} & ButtonProps) {
  const [isOpen, dialog] = useDisclosure()
  return (
    <>
      <Button {...props} onClick={dialog.open}>
        {label}
      </Button>
      <Modal opened={isOpen} onClose={dialog.close} title={title} size={modalSize}>
        {isOpen && form(dialog.close)}
      </Modal>
    </>
  )
}
