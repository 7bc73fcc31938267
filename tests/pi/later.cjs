// Preloaded into Pi: its clock is DAYS_LATER days ahead. Timers keep their pace.
const ahead = Number(process.env.DAYS_LATER || 0) * 86_400_000;
const Now = Date;
globalThis.Date = class Date extends Now {
  constructor(...args) {
    super(...(args.length ? args : [Now.now() + ahead]));
  }
  static now() {
    return Now.now() + ahead;
  }
};
