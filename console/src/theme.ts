import {
  ActionIcon,
  Alert,
  Badge,
  Checkbox,
  createTheme,
  Drawer,
  type MantineColorScheme,
  type MantineColorSchemeManager,
  Menu,
  Modal,
  NavLink,
  Notification,
} from '@mantine/core'
import * as strings from './strings.ts'

const closable = { closeButtonProps: { 'aria-label': strings.close } }

/** Components with texts of users, whose direction follows their content; not extended, which would load them. */
const TEXTS = ['Anchor', 'Code', 'TableTd', 'Text', 'Textarea', 'TextInput', 'Title']
const texts = Object.fromEntries(TEXTS.map(name => [name, { defaultProps: { dir: 'auto' } }]))

/** The defaults of the library, with the contrast and the names that WCAG 2.2 AA demands. */
export const theme = createTheme({
  primaryColor: 'indigo',
  primaryShade: 8,
  autoContrast: true,
  defaultRadius: 'md',
  cursorType: 'pointer',
  respectReducedMotion: true,
  fontFamily: 'Inter, system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif',
  fontFamilyMonospace: 'ui-monospace, SFMono-Regular, Menlo, Consolas, "Liberation Mono", monospace',
  headings: { fontWeight: '650' },
  components: {
    ...texts,
    ActionIcon: ActionIcon.extend({ defaultProps: { variant: 'subtle', color: 'gray', size: 'lg' } }),
    Alert: Alert.extend({ defaultProps: { variant: 'default' } }),
    Badge: Badge.extend({ defaultProps: { tt: 'none', fw: 600 } }),
    Checkbox: Checkbox.extend({ defaultProps: { size: 'md' } }),
    Drawer: Drawer.extend({ defaultProps: closable }),
    Menu: Menu.extend({ defaultProps: { returnFocus: true } }),
    Modal: Modal.extend({ defaultProps: { ...closable, centered: true, radius: 'lg' } }),
    NavLink: NavLink.extend({
      defaultProps: { variant: 'filled', py: 6 },
      styles: { root: { borderRadius: 'var(--mantine-radius-md)' } },
    }),
    Notification: Notification.extend({ defaultProps: closable }),
    // Not extended, which would load it: a list does not open where a dialog begins with one.
    Select: { defaultProps: { openOnFocus: false } },
  },
})

let scheme: MantineColorScheme = 'auto'

/** Remembers the colour scheme for the tab: the page stores nothing. */
export const schemeInMemory: MantineColorSchemeManager = {
  get: () => scheme,
  set: value => {
    scheme = value
  },
  subscribe: () => {},
  unsubscribe: () => {},
  clear: () => {
    scheme = 'auto'
  },
}
